"""The tiny model with other chat templates."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.sglang.engine import installed

NAME, PAGE_TOKENS = "llama", 16

# What templates of today's models do: dates, tools as JSON with and without indent, calls, results, thoughts, parts.
TEMPLATE = """\
{{- bos_token }}
{%- set ns = namespace(system='') %}
{%- if messages[0].role == 'system' %}{% set ns.system = messages[0].content | trim %}{% endif %}
<|system|> {{ ns.system }}
Today: {{ strftime_now('%Y') }}
{% if tools %}Tools:
{% for tool in tools %}
{{ tool | tojson(indent=2) }}
{{ tool.function | tojson }}
{% endfor %}
{% endif %}
{% for message in messages %}
{% if message.role == 'system' %}{% continue %}{% endif %}
<|{{ message.role }}|>
{%- if message.reasoning_content is defined %} [{{ message.reasoning_content }}]{% endif %}
{%- if message.name is defined %} ({{ message.name }}){% endif %}
 {{ message.content }}
{% for call in message.tool_calls or [] %}
{{ call.id }} {{ call.function.name }} {{ call.function.arguments | tojson }}
{% for key, value in call.function.arguments.items() %}{{ key }}={{ value }};{% endfor %}

{% endfor %}
{% endfor %}
{% generation %}{% endgeneration %}
{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is false %}<think></think>{% endif %}{% endif %}
"""
PARTS = "{% for message in messages %}{% for content in message['content'] %}[{{ content.text }}]{% endfor %}{% endfor %}"


def model_folder(folder: Path, template: str) -> Path:
    """The tiny model with a BOS before every prompt, as Llama's has, and another template."""
    shutil.copytree(installed() / "model", folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    single = [bos, {"Sequence": {"id": "A", "type_id": 0}}]
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
    }
    path.write_text(json.dumps(tokenizer))
    (folder / "chat_template.jinja").write_text(template)
    return folder
