"""Chat templates in the idioms that models use, written for these tests."""

CHATML = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{% endif %}\
{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

HEADERS = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "[system]\\nToday: " + date_string + "\\n" + system_message + "[end]" }}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- for call in message.tool_calls %}
            {{- "[call]" + call.function.name + ":" }}
            {%- for name, value in call.function.arguments | items %}
                {{- name + "=" + (value | tojson) + (", " if not loop.last else "") }}
            {%- endfor %}
        {%- endfor %}
        {{- "[end]" }}
    {%- else %}
        {{- "[" + message['role'] + "]\\n" + message['content'] | trim + "[end]" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "[assistant]\\n" }}
{%- endif %}
"""

THINKING = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages | length - 1, searching=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if '</think>' in content and loop.index0 < ns.last %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ content ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

ALTERNATING = """{{ bos_token }}{% for message in messages %}
    {% if message['role'] == 'system' %}
        {{ raise_exception('System role not supported') }}
    {% endif %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {% endif %}
    {%- if message['role'] == 'user' -%}
        [INST] {{ message['content'] }} [/INST]
    {%- elif message['role'] == 'assistant' -%}
        {{ ' ' + message['content'] + eos_token }}
    {%- else -%}
        {{ raise_exception('Only user and assistant roles are supported!') }}
    {%- endif -%}
{% endfor %}"""

TRAINING = """{%- for message in messages -%}
    {%- if message.role == 'note' -%}{%- continue -%}{%- endif -%}
    {%- if message.role == 'assistant' -%}
        {%- generation -%}
        A: {{ message.content }};
        {%- endgeneration -%}
    {%- else -%}
        Q: {{ message.content }};
    {%- endif -%}
{%- endfor -%}"""

PARTS = """{% for message in messages %}{{ message['role'] }}:{% for part in message['content'] %}\
{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}|{% endfor %}"""

ALL = {
    "chatml": CHATML,
    "headers": HEADERS,
    "thinking": THINKING,
    "alternating": ALTERNATING,
    "training": TRAINING,
}
