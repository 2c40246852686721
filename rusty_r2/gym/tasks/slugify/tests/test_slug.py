from slug import slugify


def test_words_are_joined():
    assert slugify("Rust Never Sleeps") == "rust-never-sleeps"


def test_punctuation_becomes_one_dash():
    assert slugify("nuts & bolts: a guide") == "nuts-bolts-a-guide"


def test_no_dash_at_the_ends():
    assert slugify("  --Ahoy!--  ") == "ahoy"


def test_digits_stay():
    assert slugify("R2 unit 42") == "r2-unit-42"


def test_nothing_left():
    assert slugify("?!") == ""
