"""Chat templates of the shapes that models come with, written for these tests, and hostile ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CHATML = """{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA_WITH_DATE = """{{- bos_token }}
{%- set date_string = strftime_now("%d %b %Y") %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start|>system<|end|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot|>" }}
{%- for message in messages %}
    {{- '<|start|>' + message['role'] + '<|end|>\\n\\n' + message['content'] | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant<|end|>\\n\\n' }}
{%- endif %}
"""

# Drops what the assistant thought before the newest question, and strips what it said.
THINKING = """{%- set ns = namespace(last=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' %}
        {%- if '</think>' in content and loop.index0 < ns.last %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- generation %}
        {{- '<|im_start|>assistant\\n' + content.strip() + '<|im_end|>\\n' }}
        {%- endgeneration %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {{- content }}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

RAISES = """{%- for message in messages %}
{%- if message['role'] == 'system' %}
{{- raise_exception('System role not supported') }}
{%- endif %}
{{- message['content'] }}
{%- endfor %}
"""

NEEDS_TOOLS = """{{- messages[0].content }}
{%- for tool in tools %}
{{- tool.name }}
{%- endfor %}
"""

# What somebody could put into a model folder, and a word of the sentence that it is refused with.
HOSTILE = {
    "endless loop": ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "does not end"),
    "loop that shows": ("{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}", "does not"),
    "calls itself": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself"),
    "calls itself twice": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "does not end",
    ),
    "recursive loop": ("{% for i in [[1]] recursive %}{{ loop([[1], [1]]) }}{% endfor %}", "itself"),
    "long text": ("{{ 'a' * 999999999999 }}", "more than"),
    "long list": ("{{ [1] * 999999999999 }}", "more than"),
    "doubling": (
        "{% set ns = namespace(x='aa') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "more than",
    ),
    "doubling by joining": (
        "{% set ns = namespace(x='aa') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "more than",
    ),
    "doubling in a block": (
        "{% set ns = namespace(x='aa') %}{% for i in range(99) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"
        "{% endfor %}",
        "more than",
    ),
    "many slices": (
        "{% set ns = namespace(l=[]) %}{% set x = 'a' * 9999999 %}{% for i in range(99999) %}"
        "{% set ns.l = ns.l + [x[1:]] %}{% endfor %}",
        "more than",
    ),
    "replacing": ("{% set x = 'a' * 999999 %}{{ x.replace('a', x) }}", "more than"),
    "replacing by a filter": ("{% set x = 'a' * 999999 %}{{ x | replace('a', x) }}", "more than"),
    "joining": ("{% set x = 'a' * 999999 %}{{ ''.join([x] * 9999) }}", "more than"),
    "joining by a filter": ("{% set x = 'a' * 999999 %}{{ ([x] * 9999) | join }}", "more than"),
    "wide": ("{{ 'a'.ljust(999999999999) }}", "width"),
    "wide format": ("{{ '%999999999d' % 1 }}", "too wide"),
    "wide brace format": ("{{ '{:999999999}'.format(1) }}", "too wide"),
    "large number": ("{{ 9 ** 9999999999 }}", "digits"),
    "squaring": (
        "{% set ns = namespace(x=99) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "digits",
    ),
    "words without end": ("{{ lipsum(n=99999999) }}", "undefined"),
    "a file": ("{% include '/etc/passwd' %}", "line 1"),
    "an import": ("{% import '/etc/passwd' as x %}", "line 1"),
    "classes": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
    "globals of a function": ("{{ raise_exception.__globals__.os }}", "unsafe"),
    "changing what it was given": ("{{ messages.append({}) }}", "line 1"),
    "unknown filter": ("{{ 'x' | center(9) }}", "center"),
    "a list of lists": ("{% set x = [0] * 20000 %}{% set y = [x] * 5000 %}{{ y }}", "more than"),
    "lists of two lists": (
        "{% set ns = namespace(x=[0]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "more than",
    ),
    "tuples of two tuples as a key": (
        "{% set ns = namespace(x=(0,)) %}{% for i in range(60) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}"
        "{{ {ns.x: 1} }}",
        "more than",
    ),
    "arguments of arguments": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1, varargs, varargs) }}{% else %}{{ varargs }}{% endif %}{% endmacro %}"
        "{{ f(60) }}",
        "more than",
    ),
    "namespaces of namespaces": (
        "{% set ns = namespace(x=0) %}{% for i in range(60) %}{% set m = namespace(a=ns.x, b=ns.x) %}{% set ns.x = m %}"
        "{% endfor %}{{ ns.x }}{{ raise_exception('shown as ' ~ ns.x) }}",
        "<namespace>",
    ),
    "many texts in a list": ("{% set x = 'a' * 999999 %}{{ [x] * 9999 }}", "more than"),
    "a list of characters": ("{{ ('a' * 16000000) | list }}", "gives list"),
    "words": ("{{ ('a ' * 8000000) | wordcount }}", "gives wordcount"),
    "lines": ("{{ ('ab\n' * 5000000).splitlines() | length }}", "gives splitlines"),
    "bytes": ("{% set b = 'a'.encode() * 700000000 %}{{ b | length }}", "encode"),
    "wide bytes": ("{{ 'a'.encode().ljust(700000000) | length }}", "encode"),
    "bytes of a number": ("{{ (1).to_bytes(700000000) | length }}", "to_bytes"),
    "translated": ("{{ ('a' * 30000).translate({97: 'b' * 20000}) | length }}", "translate"),
    "stripped of everything": ("{% set x = 'a' * 9999999 %}{{ x.strip('b' * 9999999 ~ 'a') }}", "more than"),
    "a width as an argument": ("{{ '{:{w}}'.format('x', w='600000000') | length }}", "too wide"),
    "the same argument often": ("{{ ('{0}' * 300000).format('a' * 9999999) }}", "more than"),
    "the same name often": ("{{ ('%(a)s' * 3000000) % {'a': 'a' * 9999999} }}", "more than"),
    "wide fields": ("{{ ('{:9999}' * 100000).format(*([1] * 99999)) }}", "more than"),
    "wide fields of a name": ("{{ ('%(a)9999d' * 100000) % {'a': 1} }}", "more than"),
    "rounding": ("{{ 1.5 | round(999999999, 'ceil') }}", "digits"),
    "dividing": ("{{ (('f' * 9999999) | int(base=16)) // (('e' * 4999999) | int(base=16)) }}", "gives int"),
    "format_map": ("{{ '{a.__class__}'.format_map({'a': 1}) }}", "format_map"),
    "classes in a format": ("{{ '{0.__class__.__mro__}'.format('') }}", "unsafe"),
    "classes of a global": ("{{ cycler.__init__.__globals__ }}", "unsafe"),
    "wide JSON": ("{{ ([0] * 99999) | tojson(indent=99999) }}", "indents"),
    "printed prettily": ("{{ ('a ' * 8000000) | pprint }}", "pprint"),
    "no template at all": ("{% for x in %}", "line 1"),
}


class PlainTokenizer:
    """A tokenizer of single characters, with the templates and the special tokens of a model."""

    is_fast = True

    def __init__(self, template: str | dict[str, str] | None) -> None:
        self.chat_template = template
        self.special_tokens_map: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>"}

    def __call__(self, text: str, add_special_tokens: bool = True, return_offsets_mapping: bool = False) -> Any:
        ids = [1] * add_special_tokens + [ord(each) for each in text]
        starts = [(n, n + 1) for n in range(len(text))]
        return {"input_ids": ids, **({"offset_mapping": starts} if return_offsets_mapping else {})}


SPECIALS = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>", "<|eot|>")


def write_chat_tokenizer(folder: Path, template: str | None, **named: str) -> None:
    """A tokenizer of single bytes whose role marks are special tokens, with a template beside it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: number for number, token in enumerate(SPECIALS)}
    for piece in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[piece] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "<|im_end|>",
        "additional_special_tokens": list(SPECIALS[3:]),
    }
    if named:
        config["chat_template"] = [{"name": name, "template": text} for name, text in named.items()]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
