"""Chat templates for Ollama: rendered as the model's own, or refused."""

import pytest

from rusty_r2.export.modelfile import describe
from rusty_r2.export.template import TemplateError, derive, render_jinja

from .ollama_standin import render
from .tiny_gguf import CHATML, tiny_gguf

LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{% elif m['role'] == 'user' %}[INST] "
    "{% if loop.index0 == 1 %}<<SYS>>{{ messages[0]['content'] }}<</SYS>>{% endif %}{{ m['content'] }}"
    " [/INST]{% else %} {{ m['content'] }} {% endif %}{% endfor %}"
)


@pytest.mark.parametrize("template", [CHATML, LLAMA3], ids=["chatml", "llama3"])
@pytest.mark.parametrize("system", ["", "Be brief."])
def test_the_go_template_renders_what_the_models_own_does(template, system):
    go = derive(template, bos="<s>", eos="</s>", adds_bos=True).to_go()
    turns = [("user", "Hi {{ .System }}"), ("assistant", "Hello"), ("user", "1\n2")]
    messages = [{"role": role, "content": content} for role, content in turns]
    asked = [{"role": "system", "content": system}, *messages] if system else messages
    assert render(go, messages, system) == render_jinja(template, asked, bos="<s>").removeprefix("<s>")


def test_a_template_that_is_not_regular_is_refused_not_approximated(tmp_path):
    with pytest.raises(TemplateError):
        derive(LLAMA2)
    with pytest.raises(TemplateError, match="template="):
        describe(tiny_gguf(tmp_path / "m.gguf", template=LLAMA2))
    assert describe(tmp_path / "m.gguf", template="{{ .Prompt }}").template == "{{ .Prompt }}"


def test_a_hostile_template_gets_nothing():
    with pytest.raises(TemplateError):
        derive("{{ ().__class__.__base__.__subclasses__() }}{{ messages[0].content }}")
    for program in ("{{ 1 / 0 }}", "{% for n in range(10 ** 9) %}{{ n }}{% endfor %}"):
        with pytest.raises(TemplateError):
            render_jinja(program, [])
    with pytest.raises(TemplateError, match="strftime_now"):
        derive("{{ strftime_now('%d') }}{{ messages[0].content }}")


def test_a_template_that_can_do_without_the_date_does():
    dated = "{% if strftime_now is defined %}{{ strftime_now('%d') }}{% else %}2024{% endif %}" + LLAMA3
    assert derive(dated).start == "2024"


def test_a_file_without_a_template_takes_words_as_they_are(tmp_path):
    assert describe(tiny_gguf(tmp_path / "m.gguf", template=None)).template == "{{ .Prompt }}"
