"""Markdown that streams in: safe at every cut, and at every cut the same as if it had come at once."""

from __future__ import annotations

import json

import pytest

from streamgen.types import FinishReason
from tests.e2e.cdp import Browser, ScriptError
from tests.e2e.chat import chatting

pytestmark = pytest.mark.asyncio(loop_scope="session")

ATTACKS = [
    '<img src=x onerror="window.pwned=1">',
    "<img/src=x/onerror=window.pwned=1>",
    "<svg onload=window.pwned=1><script>window.pwned=1</script></svg>",
    "<svg><animate onbegin=window.pwned=1 attributeName=x></svg>",
    "<script>window.pwned=1</script>",
    "<scr<script>ipt>window.pwned=1</scr</script>ipt>",
    '<iframe srcdoc="<script>parent.pwned=1</script>"></iframe>',
    "<details open ontoggle=window.pwned=1>x</details>",
    "<style>*{background:url(http://evil.example/css)}</style>",
    "<link rel=stylesheet href=http://evil.example/css>",
    '<meta http-equiv=refresh content="0;url=http://evil.example/">',
    "<base href=http://evil.example/><a href=x>y</a>",
    "<form action=http://evil.example/><input autofocus onfocus=window.pwned=1></form>",
    "<math><mtext><table><mglyph><style><img src=x onerror=window.pwned=1>",
    "<div>\n<img src=x onerror=window.pwned=1>\n</div>\n\nafter",
    "<!--><img src=x onerror=window.pwned=1>-->",
    "[click](javascript:window.pwned=1)",
    "[click](JaVaScRiPt:window.pwned=1)",
    "[click](\u0001javascript:window.pwned=1)",
    "[click](java\nscript:window.pwned=1)",
    "[click](&#106;avascript:window.pwned=1)",
    "[click](&#x6A;avascript&#58;window.pwned=1)",
    "[click](javascript&colon;window.pwned=1)",
    "[click](<javascript:window.pwned=1>)",
    "[click](vbscript:x)",
    "[click](data:text/html,<script>parent.pwned=1</script>)",
    "[click](blob:http://x/y)",
    "[click](file:///etc/passwd)",
    "[click](//evil.example/x)",
    "[click](/v1/models)",
    "[click][ref]\n\n[ref]: javascript:window.pwned=1",
    "<javascript:window.pwned=1>",
    "![x](http://evil.example/pixel.png)",
    "![x](data:image/svg+xml,<svg onload=parent.pwned=1>)",
    "![x](javascript:window.pwned=1)",
    "[![x](http://evil.example/p.png)](javascript:window.pwned=1)",
    "![x][ref]\n\n[ref]: http://evil.example/pixel.png",
    '[x](http://ok.example/" onmouseover="window.pwned=1)',
    "[x](http://ok.example 'title\" onmouseover=\"window.pwned=1')",
    '```"><img src=x onerror=window.pwned=1>\ncode\n```',
    "```html\n</code></pre><img src=x onerror=window.pwned=1>\n```",
    "`</code><img src=x onerror=window.pwned=1>`",
    "| <img src=x onerror=window.pwned=1> | b |\n|---|---|\n| [x](javascript:window.pwned=1) | <svg/onload=pwned=1> |",
    "- <img src=x onerror=window.pwned=1>\n  > <svg onload=window.pwned=1>",
    "# <img src=x onerror=window.pwned=1>",
    "&lt;img src=x onerror=window.pwned=1&gt;",
    'https://evil.example/"><img src=x onerror=window.pwned=1>',
    "constructor __proto__ [hasOwnProperty](toString) [x](http://[)",
]

# What a renderer of model output may leave in the page: these elements, with these attributes, and no other.
SAFE = """
(root) => {
  const tags = new Set(("A BLOCKQUOTE BR BUTTON CODE DEL DIV EM H1 H2 H3 H4 H5 H6 HR INPUT LI OL P PRE SPAN STRONG "
    + "TABLE TBODY TD TH THEAD TR UL SVG USE").split(" "));
  const names = new Set(("class type tabindex role aria-label aria-hidden href title target rel start disabled checked "
    + "data-language data-align data-task").split(" "));
  const bad = [];
  for (const element of root.querySelectorAll("*")) {
    if (!tags.has(element.tagName.toUpperCase())) bad.push(element.tagName);
    for (const { name, value } of element.attributes) {
      if (!names.has(name)) bad.push(`${element.tagName} ${name}=${value}`);
    }
    if (element.tagName === "A") {
      if (!/^(https?|mailto):/.test(element.href)) bad.push(element.href);
      if (!element.relList.contains("noopener") || element.target !== "_blank") bad.push("a link without noopener");
    }
    if (element.tagName === "use" && !element.getAttribute("href").startsWith("#i-")) bad.push("use");
  }
  return bad;
}
"""

DOCUMENTS = [
    "# Title\n\nSome *text* with **bold**, `code` and [a link](https://example.org/x).\n\nNext\nline.",
    "1. one\n2. two\n   - inner\n   - other\n\n     with a paragraph\n3. three\n\nafter",
    "5) five\n6) six",
    "- [ ] open\n- [x] done\n- plain",
    "> quoted\n> more\n>\n> - list in quote\n> - again\n\nout",
    "```python\ndef f(x):\n    return x < 3 and x > 1\n```\n\ntext\n\n~~~\nraw\n~~~\n",
    "````md\n```\ninner\n```\n````\n",
    "| a | b |\n|:-:|--:|\n| 1 | 2 |\n| `x` | **y** |\n\nafter the table",
    "Setext\n======\n\nAnother\n---\n\n***\n\nend",
    "    indented code\n    more\n\npara",
    "a paragraph\nthat looks\n- like a list\n\n* * *\n- - -",
    "text with &amp; &lt;b&gt; &#8364; &bogus; and <b>html</b><br>line",
    "<div>block html</div>\n\nafter *it*",
    "line one  \nline two\\\nline three",
    "tabs\tin\ttext\r\nand\r\nCR LF\r\n\r\nnew paragraph\r\n\r\n- a\r\n- b\r\n",
    "emoji 👩‍👩‍👧 and 漢字 and ř\n\n~~gone~~ https://example.org auto <https://example.net>",
    "- a\n\n- b\n\n\n- c\n\ntext\n\n1. x\n\n   y\n",
    "nested **bold *and italic* text** and ***all***\n\n> > deep\n> back",
    "# \n\n- \n- x\n\n```\n",
]


async def test_F14_model_output_never_becomes_markup_wherever_it_is_cut(browser: Browser) -> None:
    async with chatting(browser, connect=False) as chat:
        bad = await chat.page.run(
            f"""(async () => {{
              const {{ MarkdownView }} = await import("/static/js/markdown.js");
              const safe = {SAFE}, bad = [];
              for (const attack of {json.dumps(ATTACKS)}) {{
                const text = `before ${{attack}}\n\n${{attack}}\n\nafter`;
                const root = document.body.appendChild(document.createElement("div"));
                const view = new MarkdownView(root);
                const look = () => bad.push(...safe(root).map((what) => [attack, what]));
                for (let end = 1; end <= text.length; end += 1) {{
                  view.show(text.slice(0, end));
                  look();
                }}
                view.show(text, {{ final: true }});
                look();
                for (const element of root.querySelectorAll("*")) element.dispatchEvent(new MouseEvent("mouseover"));
              }}
              return bad;
            }})()"""
        )
        assert bad == []
        assert await chat.page.run("typeof window.pwned") == "undefined"
        assert [url for url in chat.page.requested if not url.startswith(chat.base)] == []


async def test_F14_over_the_socket_in_single_characters(browser: Browser) -> None:
    async with chatting(browser) as chat:
        stream = await chat.ask("<img src=x onerror=window.pwned=1>")
        for attack in ATTACKS:
            stream.say(*attack, "\n\n")
        stream.end(FinishReason.STOP)
        await chat.written()
        assert await chat.page.run(f"({SAFE})(document.querySelector('.markdown'))") == []
        assert await chat.page.run("document.querySelector('[data-role=user] .body').children.length") == 0
        assert await chat.page.run("typeof window.pwned") == "undefined"
        # The title, the list and a second visit show the same words, and are no weaker.
        await chat.page.reload()
        await chat.page.until("document.querySelector('#conversations .open')")
        await chat.page.click("#conversations .open")
        await chat.until_shown("window.pwned")
        assert await chat.page.run(f"({SAFE})(document.querySelector('.markdown'))") == []
        assert await chat.page.run("typeof window.pwned") == "undefined"
        assert [url for url in chat.page.requested if not url.startswith(chat.base)] == []


async def test_F14_the_policy_forbids_inline_script_and_html_from_strings(browser: Browser) -> None:
    async with chatting(browser, connect=False) as chat:
        with pytest.raises(ScriptError, match="TrustedHTML"):
            await chat.page.run("document.body.innerHTML = '<b>x</b>'")
        with pytest.raises(ScriptError, match="TrustedScript"):
            await chat.page.run("document.body.setAttribute('onclick', 'window.pwned = 1')")
        await chat.page.run(
            "document.body.append(document.createElement('style')); document.body.lastChild.append('*{}')"
        )
        assert any("Content Security Policy" in complaint for complaint in chat.page.complaints)
        chat.page.complaints.clear()


async def test_streamed_and_whole_text_look_the_same_at_every_cut(browser: Browser) -> None:
    async with chatting(browser, connect=False) as chat:
        documents = [*DOCUMENTS, "\n\n".join(DOCUMENTS)]
        differences = await chat.page.run(
            f"""(async () => {{
              const {{ MarkdownView }} = await import("/static/js/markdown.js");
              const differences = [];
              for (const text of {json.dumps(documents)}) {{
                const step = text.length > 600 ? 7 : 1;
                const grown = document.createElement("div"), view = new MarkdownView(grown);
                for (let end = 1; end <= text.length; end += step) {{
                  const part = text.slice(0, end);
                  view.show(part);
                  const fresh = document.createElement("div");
                  new MarkdownView(fresh).show(part);
                  // A code block grows by text nodes, which says nothing about how it looks.
                  grown.normalize();
                  fresh.normalize();
                  if (!fresh.isEqualNode(grown)) {{
                    differences.push([part.slice(-60), fresh.textContent.slice(-60), grown.textContent.slice(-60)]);
                    break;
                  }}
                }}
              }}
              return differences;
            }})()"""
        )
        assert differences == []


async def test_settled_blocks_keep_their_elements(browser: Browser) -> None:
    async with chatting(browser, connect=False) as chat:
        kept = await chat.page.run(
            """(async () => {
              const { MarkdownView } = await import("/static/js/markdown.js");
              const root = document.createElement("div"), view = new MarkdownView(root);
              let text = "first\\n\\n- a\\n- b\\n\\n```js\\nlet x;\\n";
              view.show(text);
              const [paragraph, list, code] = root.children, item = list.firstElementChild;
              view.show(text += "let y;\\n");
              const grown = root.children[2] === code && code.querySelector("code").textContent.includes("let y;");
              view.show(text += "```\\n\\nlast");
              const [now, then] = root.children;
              return [grown, now === paragraph, then.firstElementChild === item, root.children.length];
            })()"""
        )
        assert kept == [True, True, True, 4]


async def test_a_long_answer_costs_no_more_at_its_end_than_at_its_beginning(browser: Browser) -> None:
    async with chatting(browser, connect=False) as chat:
        lexed = await chat.page.run(
            """(async () => {
              const { MarkdownView } = await import("/static/js/markdown.js");
              const { Lexer } = await import("/static/vendor/marked/marked.esm.js");
              const lex = Lexer.prototype.lex, sizes = [];
              Lexer.prototype.lex = function (text) { sizes.push(text.length); return lex.call(this, text); };
              const view = new MarkdownView(document.createElement("div"));
              let text = "";
              for (let i = 0; i < 400; i += 1) view.show(text += `Paragraph ${i} with *some* words.\\n\\n`);
              Lexer.prototype.lex = lex;
              return Math.max(...sizes);
            })()"""
        )
        assert lexed < 200
