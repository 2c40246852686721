# SPDX-License-Identifier: AGPL-3.0-or-later
"""Secrets are cut out of text wherever people write them; code, prose, hashes and logs stay."""

import json
import re

import pytest

from rusty_r2.protocol import Cmd, Edit, Msg, parse, render
from rusty_r2.redact import redact

PLAIN = """
Cookie: sid=hush; theme=dark
Cookie: a=b; session=moonlight; c=d
Set-Cookie: sid=hush; Path=/; HttpOnly
< set-cookie: id=moonlight; Expires=Wed, 21 Oct 2026 07:28:00 GMT
curl -H 'Cookie: a=b; sid=hush' https://host
headers = {'Cookie': 'sid=hush'}
{"Cookie": "sid=hush; c=d"}
wget --header="Cookie: sid=hush" https://host
document.cookie = "sid=hush; path=/"
curl -b 'a=b; sid=hush' https://host/x
curl -b sid=hush https://host/x
curl -sb sid=hush https://host/x
curl --cookie "sid=hush" https://host
curl --cookie=sid=hush https://host
mysql -phush shop
mysqldump -u root -phush shop
sshpass -p hush ssh root@host
sshpass -phush ssh root@host
sshpass -p 'two words' ssh root@host
docker login -u bob -p hush host
docker login -phush
podman login -u bob --password hush
helm registry login -u bob -p hush host
echo hush | docker login -u bob --password-stdin
curl -u bob:hush https://host
curl -ubob:hush https://host
curl -u 'bob:two words' https://host
curl --user bob:hush https://host
curl --proxy-user bob:hush https://host
wget --user bob --password hush https://host
wget --http-password=hush https://host
redis-cli -a hush ping
requirepass moonlight
mongo -u bob -p hush shop
ldapsearch -D cn=admin -w hush
unzip -P hush x.zip
7z x -phush x.7z
openssl rsa -passin pass:hush -in k
echo hush | sudo -S apt update
echo 'bob:hush' | sudo chpasswd
tool --password hush
tool --password=moonlight run
tool --password "two words" run
tool --db-password moonlight
tool --client-secret moonlight
tool --auth-token=moonlight
password = moonlight
password=moonlight
password: moonlight
db_password: moonlight  # of the shop
password = "moonlight"
password = 'hush'
password: str = "moonlight"
password := "moonlight"
const password = `moonlight`;
"password": "moonlight"
{"user": "bob", "password": "hush"}
{"passphrase": "two words"}
dbPassword: 'moonlight'
client_secret = 'moonlight'
connect(host='db', passwd="hush")
Server=db;User Id=bob;Password=moonlight;
host=db user=bob password=moonlight dbname=shop
curl -d 'user=bob&password=moonlight' https://host
https://host/login?password=moonlight&x=1
spring.datasource.password=moonlight
<password>moonlight</password>
the password is "moonlight"
CREATE USER bob IDENTIFIED BY 'moonlight';
ALTER USER bob WITH PASSWORD 'moonlight';
PGPASSWORD=hush psql -h db
PGPASSWORD='two words' psql
export SECRET=moonlight
export SECRET_KEY='moonlight'
API_TOKEN=moonlight ./run
docker run -e POSTGRES_PASSWORD=moonlight postgres
      POSTGRES_PASSWORD: moonlight
git clone https://bob:hush@host/x
redis://:hush@host:6379/0
mongodb+srv://bob:moonlight@host/shop
machine host login bob password hush
default login bob password hush
""".strip("\n").split("\n")
"""a secret that is a plain word, in every place where people write one"""


@pytest.mark.parametrize(
    "text", [*PLAIN, "machine host\n  login bob\n  password hush\n", "x\npassword: hush\ny"]
)
def test_a_plain_word_is_a_secret_in_the_place_of_one(text):
    clean, count = redact(text)
    assert count and not re.search("hush|moonlight|two|words", clean)
    assert redact(clean) == (clean, 0)
    outer = {"cmd": json.dumps({"cmd": text})}
    inside, counted = redact(json.dumps(outer))
    assert counted == count and json.loads(json.loads(inside)["cmd"])["cmd"] == clean


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Set-Cookie: a=hush; Path=/; Secure", "Set-Cookie: a=[redacted:cookie]; Path=/; Secure"),
        ("curl -u bob:hush https://host", "curl -u bob:[redacted:login] https://host"),
        ("{'password': 'hush, hush)'}", "{'password': '[redacted:named]'}"),
        ("if password:\n    first_pass2 = 1", "if password:\n    first_pass2 = 1"),
        ('b"-----BEGIN ' + 'PRIVATE KEY-----" and more', 'b"[redacted:private-key]" and more'),
    ],
)
def test_what_stands_around_a_secret_stays(text, clean):
    assert redact(text)[0] == clean


HARMLESS = """
The password is required.
the password is case-sensitive and never shown
password: required
Enter the password: it is not shown
Wrong password: try again
Password: ********
"password": "string"
"password": "This field is required."
{"password": "<your password>"}
'password': 'Enter your password'
def login(user: str, password: str) -> bool:
def login(user, password=None, *, token=None):
    password: str
    password: SecretStr
    password: string;
password = input()
password = getpass.getpass("Password: ")
password = os.environ["PASSWORD"]
password = os.getenv("PGPASSWORD")
password = sys.argv[1]
    password = value
    self.password = pw
        password=pw
connect(user=user, password=pw)
connect(host, password=args.password)
if password == stored: return True
if passwd is not None:
url = f"postgres://{user}:{password}@{host}/shop"
:param password: the password of the user
parser.add_argument("--password", help="the password", default=None)
use the --password option, or --password-file FILE
--no-password --ask-password host
password_field = 'pw'
password_file: /run/secrets/db
token_type = 'encoded-word'
TOKEN_URL=https://host/oauth TOKEN_LIMIT=4096 SECRETS_DIR=/run/secrets API_KEY_HEADER=X-Api-Key
GOOGLE_APPLICATION_CREDENTIALS=/home/bob/key-1.json
secretName: shop-tls
<input type="password" name="password">
passwords = load(path)
passwd:         files
the :token:`value_name` of the grammar
cookie = request.cookies.get("sid")
cookie: str = ""
Cookie: $COOKIE
"Cookie": f"sid={sid}"
curl -b cookies.txt -c cookies.txt https://host
curl -u "$NAME:$PASS" https://host
curl -b "sid=$SID" https://host
mkdir -p a/b && cp -p a b
ssh -p 2222 host; docker run -p 8080:80 image
zip -r x.zip folder; unzip -p x.zip a.txt
echo done | sudo tee /etc/motd
login with password authentication; login or password wanted
Authorization: Bearer <token>
Authorization: Basic authentication is off
export PATH=$HOME/bin:$PATH TOKEN=$(cat token)
3f786850e387550fdab836ed7e6dc881de23001b refs/heads/main
sha512-ba3253876aed6bc22d4a6ff53d8406c6ad864195ed144ab5c87621b6c233b548baeae6956df346ec8c17f5ea10f35ee3
md5 d41d8cd98f00b204e9800998ecf8427e  empty.txt
request 123e4567-e89b-12d3-a456-426614174000 took 12 ms
2026-11-15T22:57:13Z INFO worker-3 GET /api/v1/items?page=2 200 0.013s
<img src="data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7">
ssh-ed25519 is a kind of key; /usr/share/task-management-system-files
-----BEGIN CERTIFICATE-----
d = {"access": 1, "key": "value", "keyboard": "qwertz"}
Traceback (most recent call last): File "/srv/app/models/token_classifier.py", line 12
""".strip("\n").split("\n")


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_lines_are_left_alone(text):
    assert redact(text) == (text, 0)
    assert redact(f"before\n{text}\nafter") == (f"before\n{text}\nafter", 0)


AWS, GITHUB, OPENAI = (
    "AKIA" + "Q3EXBMPL7JUZ5TKD",
    "ghp_" + "a1B2c3D4e5" * 3 + "f6G7h8",
    "sk-" + "proj-aB3dE5fG7hJ9kL2mN4pQ",
)
PEM = "-----BEGIN RSA PRIVATE " + "KEY-----\nMIIEow\nabc\n-----END RSA PRIVATE " + "KEY-----"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"export AWS={AWS}", AWS),
        (f"git clone https://{GITHUB}@host/x", GITHUB),
        (f"key is {OPENAI}.", OPENAI),
        (f"cat key\n{PEM}\nend", "MIIEow"),
        ("postgres://bob:hunter22@db/x", "hunter22"),
        ("Authorization: Bearer abcdef0123456789abcdef", "abcdef0123456789abcdef"),
        ('{"password": "correct-horse-9"}', "correct-horse-9"),
        ("MY_API_KEY=zx81spectrum48k", "zx81spectrum48k"),
        ("mysql --password=tr0ub4dor", "tr0ub4dor"),
        ("blob Zk3vQ9xT7bL2mN8pR4sW6yA1cE5gJ0hUfD", "Zk3vQ9xT7bL2mN8pR4sW6yA1cE5gJ0hUfD"),
        ("postgres://bob:hunt@er22@db/x", "er22"),
        ("curl -s -u bob:hunter22 https://host/x", "hunter22"),
        ("PASSWORD=P@$$w0rd1", "w0rd1"),
        ("password: hunter22getaway", "hunter22getaway"),
        ("curl -su bob:hunter22 https://host/x", "hunter22"),
        ("mysql -u root -phunter22 shop", "hunter22"),
        ("mysqldump -phush shop > shop.sql", "hush"),
        ("/usr/bin/mysqladmin -uroot -p'two words' ping", "words"),
        ("mariadb-dump --password=abc shop", "abc"),
        ("mysql -NBpHUNTER22 -e 'select 1'", "HUNTER22"),
        ("mysql --password HUNTER22", "HUNTER22"),
        ("AccountKey=abcd1234/abcd1234+abcd1234==", "abcd1234+abcd1234"),
        ("export PASSWORD=my_secret_password", "my_secret"),
        ("DB_PASSWORD=sunshine", "sunshine"),
        ("SMTP_PASS=hunter22", "hunter22"),
        ("MYSQL_PWD=hunter22 mysql shop", "hunter22"),
        ("PRIVATE_KEY=0a1b2c3d4e5f", "0a1b2c3d"),
        ("curl -H 'Authorization: Token 9944b09199c62bcf9418ad846dd0'", "9944b0"),
        ("Authorization: 9944b09199c62bcf9418ad846dd0", "9944b0"),
        ("git clone https://9944b09199c62bcf9418ad846dd0@host/x", "9944b0"),
        ("sshpass -p hunter22 ssh root@host", "hunter22"),
        ("docker login -u bob -p 'hunter22' host", "hunter22"),
        ("gpg --batch --passphrase hunter22 -c x", "hunter22"),
        ("openssl rsa -passin pass:hunter22 -in k", "hunter22"),
        ("machine host login bob password hunter22", "hunter22"),
        ("//host/:_auth=dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("Authorization: Basic Ym9iOmh1c2g=", "Ym9iOmh1c2g"),
        ('{"Proxy-Authorization": "Basic Ym9iOngx"}', "Ym9iOngx"),
        ("my password is hunter22", "hunter22"),
        ("https://hooks.slack.com/services/T0AB1CD2E/B0AB1CD2E/" + "a1B2c3D4" * 3, "a1B2c3D4"),
        (PEM.replace("\n", "\\n").replace("RSA", "OPENSSH"), "MIIEow"),
        (PEM.replace("RSA", "PGP").replace("KEY-", "KEY BLOCK-"), "MIIEow"),
        (PEM.split("\n-----END")[0], "MIIEow"),
        ("aws_secret_access_key = wJalrXUtnFEMIK7MDENGbPxRfiCYQQQQQQQQQKEY", "wJalrX"),
    ],
)
def test_secrets_are_cut_out_and_counted(text, secret):
    clean, count = redact(text)
    assert secret not in clean and count >= 1 and "[redacted:" in clean


RANDOM = "a1B2c3D4e5" * 4


@pytest.mark.parametrize(
    ("start", "rest"),
    [
        ("ASIA", "QX7BMPL3JUZ5TKDH"),
        ("AIza", RANDOM[:35]),
        ("npm_", RANDOM[:36]),
        ("SG.", f"{RANDOM[:22]}.{RANDOM}"),
        ("AGE-SECRET-KEY-1", RANDOM.upper() + "QPZRY"),
        ("eyJ", f"{RANDOM[:9]}.eyJ{RANDOM[:9]}.{RANDOM}"),
        *((start, RANDOM) for start in ("ghs_", "github_pat_", "glpat-", "sk-", "sk-ant-", "rk_live_")),
        *((start, RANDOM) for start in ("GOCSPX-", "api_org_", "whsec_", "xapp-1-", "gsk_", "hvs.")),
        *((start, RANDOM) for start in ("sk_test_", "xoxb-", "hf_", "pypi-", "ya29.", "dckr_pat_")),
    ],
)
def test_keys_are_known_by_their_first_letters(start, rest):
    clean, count = redact(f"x = {start}{rest}!")
    assert count == 1 and re.fullmatch(r"x = \[redacted:(?!random)[a-z-]+\]!", clean)


@pytest.mark.parametrize(
    "text",
    [
        "commit 3f786850e387550fdab836ed7e6dc881de23001b",
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "id 123e4567-e89b-12d3-a456-426614174000",
        "password = os.environ['PASSWORD']",
        "tokens: 128 of 512",
        "the token count is large",
        "def get_token(self, tokenizer_path): return self.token",
        "https://example.org:8080/path/to/some/very/long/page/name.html",
        "/usr/lib/python3/dist-packages/setuptools/command/build_clib.py",
        "--token TOKEN",
        "api_key=YOUR_API_KEY",
        "tokenizer = AutoTokenizer.from_pretrained('llama-3.2-1b')",
        "tokenizer_path: models/llama-3.2-1b",
        "password = getpass.getpass()",
        "password = auth[2] if auth else ''",
        "tokens: Sequence[Sequence[int]], token_ids: list[list[int]]",
        "docker run -u 1000:1000 image",
        "curl https://api-us.host:8443/v1 --url=http://localhost:8080/",
        "mysql --user=user --password=password database",
        "mysql -uroot -p shop; mkdir -pv a/b",
        "mysql -u root -p$MYSQL_PASS -hprod.host -P3306 shop",
        "mysqldump -pPASSWORD shop",
        "docker run --name mysql -p3306:3306 mysql",
        "pip install mysqlclient && make -prod",
        "sed -i 's/^api_key=.*/api_key=527/' monitor.conf",
        "generate(max_new_tokens=config.max_new_tokens, pad_token_id=tokenizer.eos_token_id)",
        "self.access_token = access_token",
        "rate = (tokens - tokens_then) / elapsed",
        "the Basic Multilingual Plane",
        "base_model: HuggingFaceTB/SmolLM2-135M-Instruct",
        "PASSWORD=$1 TOKEN=${TOKEN} PASSWORD=PASSWORD",
        "connect(PASSWORD=settings.db_password, SECRET_KEY=secret_key)",
        "n_pass=first_pass_2 OLDPWD=/home/bob2",
        "self._auth = auth_from_file; login or password wanted",
        "Authorization: required for /v1",
        "ssh://687fb701029421ae5549d998@host git@host:x/y.git",
    ],
)
def test_ordinary_text_survives(text):
    assert redact(text) == (text, 0)


def test_what_was_cut_is_not_cut_again():
    assert redact(f"git clone https://{GITHUB}@host/x") == (
        "git clone https://[redacted:github-token]@host/x",
        1,
    )


@pytest.mark.parametrize(
    "action",
    [
        Edit("c.py", 'PASSWORD = "hunter22-x"\nprint(1)\n'),
        Edit("c.json", '{"api_key": "hunter22-x"}'),
        Cmd("mysql --password hunter22-x"),
        Cmd('mysql --password "hunter22-x"'),
        Cmd("mysql -phunter22-x shop"),
        Cmd('mysql -p"hunter22-x" -e "select 1"\necho'),
        Cmd("export TOKEN='hunter22-x'\nrun"),
        Cmd('curl -u "bob:hunter22-x" https://host'),
        Msg('the password: "hunter22-x"; say it to nobody'),
    ],
)
def test_a_secret_in_a_reply_is_cut_out_and_the_reply_stays_the_same_action(action):
    clean, count = redact(render(action))
    assert count == 1 and "hunter22" not in clean
    kept = parse(clean)
    assert type(kept) is type(action)
    for before, after in zip(vars(action).values(), vars(kept).values(), strict=True):
        assert after == before or after.split("[redacted:")[0] == before.split("hunter22")[0]
        assert after.split("]")[-1] == before.split("hunter22-x")[-1]


def test_redaction_is_linear_in_its_input():
    for text in (
        "a" * 100_000,
        "password " * 10_000,
        "https://" * 10_000,
        "-----BEGIN PRIVATE KEY-----" * 1_000,
        "=" * 70_000,
        "password=" + "\\" * 70_000,
        "curl -u " * 10_000,
        "mysql -u " * 10_000,
        "mysql -p'" * 10_000,
        "docker login " * 10_000,
        "authorization: a " * 10_000,
        "https://" + "a" * 70_000,
        "ftp://a:" + "@" * 70_000,
        '-----BEGIN PRIVATE KEY-----"' * 1_000,
        "cookie: a=" * 10_000,
        "cookie: a=b;" + "c=d;" * 20_000,
        'password="' * 10_000,
        "password:" + " " * 70_000,
        "password: a" + " " * 70_000 + "b",
        "password=abc " * 10_000,
        "machine " * 10_000,
        "echo a " * 10_000,
        "T" * 70_000,
        "authorization: " + "a" * 70_000,
    ):
        redact(text)
