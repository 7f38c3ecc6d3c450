"""The chat template that atlas_rl's own models use: Qwen3's order of control tokens in two spacings."""

END_OF_TEXT = "<|endoftext|>"
TURN_BEGIN = "<|im_start|>"
TURN_END = "<|im_end|>"
CALL_BEGIN = "<tool_call>"
CALL_END = "</tool_call>"

SPECIAL_TOKENS = (END_OF_TEXT, TURN_BEGIN, TURN_END)
"""Control tokens that a decoder may skip."""

TOOL_TOKENS = (CALL_BEGIN, CALL_END, "<tool_response>", "</tool_response>")
"""Control tokens that mark calls and what tools answer."""

THINK_TOKENS = ("<think>", "</think>")
"""Control tokens around reasoning."""

_TEMPLATE = """\
{%- set gap = GAP %}
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n' }}
    {%- endif %}
    {{- '<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>' + gap }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}
            {{- '<|im_start|>user\\n' }}
        {%- else %}
            {{- gap }}
        {%- endif %}
        {{- '<tool_response>' + gap + message.content + gap + '</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}
            {{- '<|im_end|>' + gap }}
        {%- endif %}
    {%- elif not (tools and loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {%- set body = call.function or call %}
            {{- '<tool_call>\\n{"name": ' + (body.name | tojson) + ', "arguments": ' }}
            {{- (body.arguments if body.arguments is string else body.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>' + gap }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def chat_template(*, compact: bool) -> str:
    """The Jinja source: system turn with the tools, turns by role, a tool's answer inside a user turn.

    Args:
        compact: leave out the newlines between turns and around a tool's answer, four tokens a turn that a model
            trained from nothing does not need. A pretrained chat model knows them and wants False.
    """
    return _TEMPLATE.replace("GAP", "''" if compact else "'\\n'", 1)
