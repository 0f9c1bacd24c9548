"""Stand-in chat templates of our own, each with one habit that templates in the wild have."""

from __future__ import annotations

CHATML = """\
{% for message in messages %}{% if loop.first and message.role != 'system' %}{{ '<|im_start|>system
Be kind.<|im_end|>
' }}{% endif %}{{ '<|im_start|>' + message.role + '
' + message.content + '<|im_end|>
' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""
"""No tools; a default system message. Concatenation raises on content that is no string."""

TOOLS = """\
{%- set first = messages[0] %}
{%- if tools or first.role == 'system' %}
{{- '<|im_start|>system\n' + (first.content if first.role == 'system' else 'Be kind.') }}
{%- if tools %}{{ '\n\nTools:' }}{% for tool in tools %}{{ '\n' ~ tool | tojson }}{% endfor %}{{ '\nEnd.' }}{% endif %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
{%- elif message.role != 'system' or not loop.first %}
{{- '<|im_start|>' + message.role + '\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""Tools, calls and results rendered by the template itself."""

STRICT = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{{- '<turn>' + ('model' if message.role == 'assistant' else message.role) + '\n' + message.content | trim }}
{{- '<end>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<turn>model\n' }}{% endif %}"""
"""Writes the first token itself, has no system role and demands alternation."""

LATE_TOOLS = """\
{%- for message in messages %}
{%- if message.role == 'user' %}
{%- if tools and loop.last %}{{ '[TOOLS]' + tools | tojson + '[/TOOLS]' }}{% endif %}
{{- '[INST]' + message.content + '[/INST]' }}
{%- elif message.role == 'system' %}{{ '[SYS]' + message.content + '[/SYS]' }}
{%- elif message.role == 'tool' %}{{ '[RESULT]' + message.content + '[/RESULT]' }}
{%- elif message.tool_calls %}
{%- for call in message.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('Call ids have nine characters') }}{% endif %}
{{- '[CALL]' + call.id + ' ' + call.function | tojson }}
{%- endfor %}
{%- else %}{{ message.content + '</s>' }}
{%- endif %}
{%- endfor %}"""
"""Moves the tools to the newest user turn, and wants call ids of nine characters."""

THINKING = """\
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if message.reasoning_content and loop.index0 > ns.last %}
{{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}
{%- endif %}
{{- message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"""
"""Drops the reasoning of earlier turns, and opens reasoning for the answer."""

SWITCHED = """\
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- if tools %}{{ '<tools>' ~ tools | tojson ~ '</tools>' }}{% endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if message.reasoning_content and loop.index0 > ns.last %}
{{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}
{%- endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}"""
"""Reasons unless `enable_thinking` is false; drops the reasoning of earlier turns; renders tools and calls."""

TEXT_ARGUMENTS = """\
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}
{{- '<' + message.role + '>' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '[' + call.function.name + ' ' + call.function.arguments + ']' }}
{%- endfor %}
{%- endfor %}"""
"""Concatenates a call's arguments, so that they must be text."""

BLOCKS = """\
{%- for message in messages %}{{ '<' + message.role + '>' }}
{%- for block in message.content %}{% if block.type == 'text' %}{{ block.text }}{% endif %}{% endfor %}
{%- endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"""
"""Reads content only as a list of blocks."""

ONE_SYSTEM = """\
{%- for message in messages %}
{%- if message.role == 'system' and not loop.first %}{{ raise_exception('System message must come first') }}{% endif %}
{{- '<' + message.role + '>' + message.content + '\n' }}
{%- endfor %}"""
"""Takes a system message at the start only."""

CLOCK = "Today is {{ strftime_now('%d %B %Y') }}.\n" + CHATML
