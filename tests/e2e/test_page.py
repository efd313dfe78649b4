"""The chat page as a person uses it, in a real browser."""

from __future__ import annotations

import pytest

from streamgen.config import ServerConfig
from streamgen.errors import QueueFullError, StepError
from streamgen.types import FinishReason
from tests.e2e import cdp
from tests.e2e.cdp import Browser, BrowserMissingError
from tests.e2e.chat import chatting, turns
from tests.server.test_ws import until

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_an_answer_is_seen_while_it_is_written(browser: Browser) -> None:
    async with chatting(browser) as chat:
        assert "tiny" in await chat.page.until("document.getElementById('model').innerText")
        assert await chat.page.run(
            "!document.getElementById('empty').hidden && document.getElementById('send').disabled"
        )
        stream = await chat.ask("What is the capital of France?")
        assert turns(stream) == [("user", "What is the capital of France?")]
        assert await chat.page.until("!document.querySelector('.thinking').hidden")
        stream.say("**Par", "is**")
        await chat.page.until("document.querySelector('.markdown strong')?.innerText === 'Paris'")
        assert await chat.page.run("document.querySelector('.thinking').hidden")
        stream.say(".", " It is", " large.")
        stream.end(FinishReason.STOP)
        await chat.written()
        assert await chat.messages() == [
            ["user", "What is the capital of France?"],
            ["assistant", "Paris. It is large."],
        ]
        stats = await chat.page.run("document.querySelector('[data-role=assistant] .stats').innerText")
        assert "tokens/s" in stats
        assert "first token after" in stats
        assert "5 tokens" in stats
        assert await chat.page.run("document.getElementById('status').innerText") == "Answer: **Paris**. It is large."
        assert await chat.page.run("document.title") == "What is the capital of France? · streamgen"


async def test_the_history_goes_along_and_stays_right_through_edit_and_regenerate(browser: Browser) -> None:
    async with chatting(browser) as chat:
        await chat.answered("one", "1")
        stream = await chat.answered("two", "2")
        assert turns(stream) == [("user", "one"), ("assistant", "1"), ("user", "two")]

        await chat.page.click(".message:last-child [aria-label='Answer again']")
        stream = await chat.engine.next_stream()
        assert turns(stream) == [("user", "one"), ("assistant", "1"), ("user", "two")]
        stream.say("zwei")
        stream.end(FinishReason.STOP)
        await chat.written()
        assert [text for _, text in await chat.messages()] == ["one", "1", "two", "zwei"]

        await chat.page.click(".message:first-child [aria-label='Edit this message']")
        await chat.page.type(" and a half")
        await chat.page.press("Enter")
        stream = await chat.engine.next_stream()
        assert turns(stream) == [("user", "one and a half")]
        stream.say("1.5")
        stream.end(FinishReason.STOP)
        await chat.written()
        assert [text for _, text in await chat.messages()] == ["one and a half", "1.5"]
        await chat.page.until("document.querySelector('#conversations .open').innerText === 'one and a half'")


async def test_editing_can_be_given_up_and_begun_from_the_keyboard(browser: Browser) -> None:
    async with chatting(browser) as chat:
        await chat.answered("first", "1")
        await chat.page.run("document.getElementById('prompt').focus()")
        await chat.page.press("ArrowUp")
        assert await chat.page.run("document.activeElement.value") == "first"
        await chat.page.press("Escape")
        assert await chat.page.run("document.activeElement.getAttribute('aria-label')") == "Edit this message"
        assert [text for _, text in await chat.messages()] == ["first", "1"]


@pytest.mark.parametrize("way", ["button", "escape"])
async def test_stop_keeps_what_was_written(browser: Browser, way: str) -> None:
    async with chatting(browser) as chat:
        stream = await chat.ask("Go on for ever")
        stream.say("and", " on")
        await chat.until_shown("and on")
        if way == "button":
            await chat.page.click("#send")
        else:
            await chat.page.press("Escape")
        await stream.aborted.wait()
        await chat.written()
        await chat.until_shown("Stopped.")
        again = await chat.ask("Why?")
        assert turns(again)[1] == ("assistant", "and on")


async def test_a_question_that_was_stopped_at_once_is_one_with_the_next(browser: Browser) -> None:
    async with chatting(browser) as chat:
        stream = await chat.ask("How far is the Moon?")
        await chat.page.click("#send")
        await stream.aborted.wait()
        await chat.written()
        again = await chat.ask("In miles.")
        assert turns(again) == [("user", "How far is the Moon?\n\nIn miles.")]


async def test_editing_while_an_answer_is_written_stops_it(browser: Browser) -> None:
    async with chatting(browser) as chat:
        stream = await chat.ask("wrong")
        stream.say("some")
        await chat.until_shown("some")
        await chat.page.click("[aria-label='Edit this message']")
        await chat.page.run("document.activeElement.select()")
        await chat.page.type("right")
        await chat.page.press("Enter")
        await stream.aborted.wait()
        second = await chat.engine.next_stream()
        assert turns(second) == [("user", "right")]
        second.say("yes")
        second.end(FinishReason.STOP)
        await chat.written()
        assert [text for _, text in await chat.messages()] == ["right", "yes"]


async def test_the_composer_takes_lines_and_sends_on_enter(browser: Browser) -> None:
    async with chatting(browser) as chat:
        await chat.page.press("/")
        await chat.page.type("a")
        await chat.page.press("Enter", modifiers=8)
        await chat.page.type("b")
        before = await chat.page.run("document.getElementById('prompt').value")
        assert before == "a\nb"
        await chat.page.press("Enter")
        assert turns(await chat.engine.next_stream()) == [("user", "a\nb")]


async def test_settings_go_along_and_are_kept(browser: Browser) -> None:
    async with chatting(browser) as chat:
        await chat.page.click("#open-settings")
        for name, value in {
            "system": "Be brief.",
            "temperature": "0.25",
            "top_p": "0.5",
            "max_tokens": "7",
            "seed": "-3",
        }.items():
            await chat.page.run(f"document.querySelector('#settings [name={name}]').focus()")
            await chat.page.type(value)
        await chat.page.click("#settings-save")
        stream = await chat.answered("hi")
        assert turns(stream) == [("system", "Be brief."), ("user", "hi")]
        params = stream.params
        assert (params.temperature, params.top_p, params.max_tokens, params.seed) == (0.25, 0.5, 7, -3)
        await chat.page.reload()
        await chat.connected()
        # A new conversation begins with them.
        stream = await chat.answered("hello")
        assert stream.params.seed == -3
        await chat.page.click("#open-settings")
        await chat.page.click("#settings-reset")
        await chat.page.click("#settings-save")
        stream = await chat.answered("again")
        assert stream.params.seed is None
        assert turns(stream)[0] == ("user", "hello")


async def test_settings_that_make_no_sense_are_refused(browser: Browser) -> None:
    async with chatting(browser) as chat:
        await chat.page.click("#open-settings")
        await chat.page.run("document.querySelector('#settings [name=temperature]').focus()")
        await chat.page.type("7")
        await chat.page.click("#settings-save")
        assert await chat.page.run("document.getElementById('settings').open")
        await chat.page.press("Escape")
        await chat.page.until("!document.getElementById('settings').open")
        assert (await chat.answered("hi")).params.temperature == 1.0


async def test_conversations_are_kept_renamed_and_deleted(browser: Browser) -> None:
    async with chatting(browser) as chat:
        await chat.answered("about cats", "meow")
        await chat.page.click("#new-chat")
        await chat.answered("about dogs", "woof")
        await chat.page.until("document.querySelectorAll('#conversations li').length === 2")
        assert await chat.conversations() == ["about dogs", "about cats"]
        await chat.page.reload()
        await chat.page.until("document.querySelectorAll('#conversations li').length === 2")
        await chat.page.click("#conversations li:last-child .open")
        await chat.until_shown("meow")

        await chat.page.click("#conversations li:last-child [data-part=rename]")
        await chat.page.type("Felines")
        await chat.page.press("Enter")
        await chat.page.until("document.querySelector('#conversations li:last-child .open')?.innerText === 'Felines'")
        assert await chat.page.run("document.getElementById('title').innerText") == "Felines"
        await chat.page.click("[aria-label='Edit this message']")
        await chat.page.type("!")
        await chat.page.press("Enter")
        (await chat.engine.next_stream()).end(FinishReason.STOP)
        await chat.written()
        assert await chat.page.run("document.getElementById('title').innerText") == "Felines"
        await chat.page.until("document.querySelector('#conversations li:first-child .open').innerText === 'Felines'")

        await chat.page.click("#conversations li:first-child [data-part=delete]")
        await chat.page.click("#confirm .danger")
        await chat.page.until("document.querySelectorAll('#conversations li').length === 1")
        await chat.page.until("document.querySelector('#conversations .open').innerText === 'about dogs'")
        assert await chat.page.run("!document.getElementById('empty').hidden")


async def test_answers_go_on_while_another_conversation_is_read(browser: Browser) -> None:
    async with chatting(browser) as chat:
        first = await chat.ask("first")
        first.say("one")
        await chat.until_shown("one")
        await chat.page.click("#new-chat")
        second = await chat.ask("second")
        second.say("two")
        await chat.until_shown("two")
        first.say(" more")
        first.end(FinishReason.STOP)
        await chat.page.until("document.querySelectorAll('[data-busy]').length === 1")
        assert [text for _, text in await chat.messages()] == ["second", "two"]
        await chat.page.click("#conversations li:not([data-current]) .open")
        await chat.until_shown("one more")


async def test_a_lost_connection_comes_back_and_misses_nothing(browser: Browser) -> None:
    async with chatting(browser) as chat:
        stream = await chat.ask("count")
        stream.say("one ")
        await chat.until_shown("one")
        for word in ("two ", "three ", "four "):
            await chat.break_connection()
            stream.say(word)
            await chat.until_shown(word.strip())
        stream.end(FinishReason.STOP)
        await chat.written()
        assert (await chat.messages())[-1] == ["assistant", "one two three four"]
        assert len(chat.engine.streams) == 1
        assert not stream.aborted.is_set()


@pytest.mark.parametrize("written", ["", "one"])
async def test_what_is_stopped_while_the_connection_is_lost_does_not_begin_anew(browser: Browser, written: str) -> None:
    async with chatting(browser) as chat:
        stream = await chat.ask("count")
        if written:
            stream.say(written)
            await chat.until_shown(written)
        await chat.lose_connection()
        await chat.page.click("#send")
        # As if the server had been started anew.
        await until(lambda: chat.app.sockets.num_sockets == 0)
        chat.app.sockets._store.clear()
        await chat.find_connection()
        await chat.until_shown("Stopped.")
        await chat.written()
        assert await chat.messages() == [["user", "count"], ["assistant", written]]
        assert chat.engine.streams == [stream]


async def test_what_is_stopped_before_it_was_sent_is_never_sent(browser: Browser) -> None:
    async with chatting(browser) as chat:
        await chat.lose_connection()
        await chat.page.run("document.getElementById('prompt').focus()")
        await chat.page.type("never mind")
        await chat.page.press("Enter")
        await chat.page.click("#send")
        await chat.until_shown("Stopped.")
        await chat.find_connection()
        await chat.connected()
        await chat.page.click("#new-chat")
        again = await chat.ask("something else")
        assert turns(again) == [("user", "something else")]
        assert chat.engine.streams == [again]


async def test_a_server_that_is_gone_is_said_and_found_again(browser: Browser) -> None:
    async with chatting(browser) as chat:
        await chat.lose_connection()
        # What is written meanwhile is sent once the server is back.
        await chat.page.run("document.getElementById('prompt').focus()")
        await chat.page.type("anybody?")
        await chat.page.press("Enter")
        await chat.find_connection()
        assert turns(await chat.engine.next_stream()) == [("user", "anybody?")]
        await chat.page.until("document.getElementById('model').innerText.startsWith('tiny')")


async def test_a_reload_in_the_middle_of_an_answer_goes_on_with_it(browser: Browser) -> None:
    async with chatting(browser) as chat:
        stream = await chat.ask("count")
        stream.say("one ", "two ")
        await chat.until_shown("one two")
        await chat.page.reload()
        await chat.until_shown("one two")
        stream.say("three")
        stream.end(FinishReason.STOP)
        await chat.written()
        assert await chat.messages() == [["user", "count"], ["assistant", "one two three"]]
        assert len(chat.engine.streams) == 1


async def test_an_answer_that_nobody_kept_says_so(browser: Browser) -> None:
    async with chatting(browser) as chat:
        stream = await chat.ask("count")
        stream.say("one ")
        await chat.until_shown("one")
        # As if the server had been started anew: it knows the session no more.
        await chat.page.run(
            "{ const kept = JSON.parse(sessionStorage['streamgen.pending']); kept[0].session = 'gone';"
            " sessionStorage['streamgen.pending'] = JSON.stringify(kept); }"
        )
        await chat.page.reload()
        await chat.until_shown("The connection was lost for too long")
        assert (await chat.messages())[-1] == ["assistant", "one"]
        # And after another visit it still does.
        await chat.page.reload()
        await chat.page.click("#conversations .open")
        await chat.until_shown("The connection was lost for too long")


async def test_a_server_with_keys_asks_for_one(browser: Browser) -> None:
    async with chatting(browser, ServerConfig(api_key=("sk-secret",)), connect=False) as chat:
        await chat.page.until("document.getElementById('key-dialog').open")
        await chat.page.type("wrong")
        await chat.page.press("Enter")
        await chat.page.until("document.getElementById('key-lead').innerText.includes('not accepted')")
        await chat.page.until("document.getElementById('key-dialog').open")
        await chat.page.type("sk-secret")
        await chat.page.press("Enter")
        await chat.connected()
        await chat.answered("hi")
        await chat.page.reload()
        await chat.connected()
        assert await chat.page.run("sessionStorage.getItem('streamgen.key')") == "sk-secret"
        assert "sk-secret" not in await chat.page.run("JSON.stringify({...localStorage})")
        chat.page.complaints.clear()  # The browser reports each 401.


async def test_whoever_has_no_key_is_asked_once(browser: Browser) -> None:
    async with chatting(browser, ServerConfig(api_key=("sk-secret",)), connect=False) as chat:
        await chat.page.until("document.getElementById('key-dialog').open")
        await chat.page.press("Escape")
        await chat.page.until("!document.getElementById('notice').hidden")
        assert not await chat.page.run("document.getElementById('key-dialog').open")
        assert await chat.page.run("sockets.length") == 0
        chat.page.complaints.clear()  # The browser reports the 401.


async def test_errors_are_said_in_words_and_can_be_tried_again(browser: Browser) -> None:
    async with chatting(browser) as chat:
        stream = await chat.ask("hi")
        stream.say("It begins")
        stream.fail(StepError("The step failed."))
        await chat.until_shown("Something went wrong on the server")
        chat.engine.refusal = QueueFullError("Too many requests wait.")
        await chat.page.click("[aria-label='Answer again']")
        await chat.until_shown("The server is busy right now")
        chat.engine.refusal = None
        await chat.page.click("[aria-label='Answer again']")
        stream = await chat.engine.next_stream()
        stream.say("now")
        stream.end(FinishReason.LENGTH)
        await chat.until_shown("Cut off")
        await chat.written()
        await chat.page.run("document.getElementById('prompt').focus()")
        await chat.page.type("x" * 5000)
        await chat.page.press("Enter")
        await chat.until_shown("too long for the model")


async def test_two_tabs_see_each_other_and_lose_nothing(browser: Browser) -> None:
    async with chatting(browser) as chat:
        await chat.answered("shared", "yes")
        other = await chat.beside()
        await other.page.until("document.querySelector('#conversations .open')")
        await other.page.click("#conversations .open")
        await other.until_shown("yes")
        # What one tab adds, the other shows.
        await chat.answered("more", "of it")
        await other.until_shown("of it")
        # Both at once: each keeps its own words.
        here, there = await chat.ask("from here"), await other.ask("from there")
        for stream in (here, there):
            stream.say("done")
            stream.end(FinishReason.STOP)
        await chat.written()
        await other.written()
        await chat.page.until("document.querySelectorAll('#conversations li').length === 2")
        assert [text for _, text in await chat.messages()][-2:] == ["from here", "done"]
        assert [text for _, text in await other.messages()][-2:] == ["from there", "done"]
        assert other.page.complaints == []


@pytest.mark.parametrize(
    "script",
    [
        "IDBObjectStore.prototype.put = () => { throw new DOMException('full', 'QuotaExceededError'); };",
        "Object.defineProperty(window, 'indexedDB', { get() { throw new Error('no'); } });",
        (
            "for (const s of ['localStorage', 'sessionStorage'])"
            " Object.defineProperty(window, s, { get() { throw new DOMException('no', 'SecurityError'); } });"
        ),
    ],
)
async def test_chatting_goes_on_without_storage(browser: Browser, script: str) -> None:
    async with chatting(browser, script=script) as chat:
        await chat.answered("one", "1")
        stream = await chat.answered("two", "2")
        assert turns(stream)[1] == ("assistant", "1")
        if "IDB" in script or "indexedDB" in script:
            assert await chat.page.until("!document.getElementById('notice').hidden")


async def test_the_panel_shows_the_servers_load(browser: Browser) -> None:
    async with chatting(browser) as chat:
        await chat.ask("hi")
        await chat.page.until("document.getElementById('stat-running').innerText === '1'")
        assert await chat.page.run("document.getElementById('stat-kv').innerText") == "25%"


async def test_nothing_is_wider_than_a_phone(browser: Browser) -> None:
    async with chatting(browser, width=375, height=667, mobile=True) as chat:
        long = "https://example.org/" + "x" * 300
        await chat.answered(
            "w" * 400,
            f"# {'T' * 200}\n\n{long}\n\n`{'c' * 300}`\n\n```\n{'code ' * 200}\n```\n\n",
            "|" + "column|" * 30 + "\n|" + "-|" * 30 + "\n|" + "value|" * 30 + "\n\n> " + "q" * 300,
        )
        assert await chat.page.run("document.documentElement.scrollWidth") == 375
        assert await chat.page.run("document.getElementById('scroll').scrollWidth <= 375")
        # The list is a drawer: out of reach until it is opened.
        assert await chat.page.run("getComputedStyle(document.getElementById('sidebar')).visibility") == "hidden"
        await chat.page.click("#open-sidebar")
        await chat.page.until("document.getElementById('sidebar').getBoundingClientRect().left === 0")
        assert await chat.page.run("document.querySelector('.main').inert")
        await chat.page.press("Escape")
        assert await chat.page.run("document.activeElement.id") == "open-sidebar"
        await chat.page.click("#open-settings")
        left, right = await chat.page.run(
            "(({left, right}) => [left, right])(document.getElementById('settings').getBoundingClientRect())"
        )
        assert 0 <= left < right <= 375


async def test_everything_has_a_name_and_is_reached_with_tab(browser: Browser) -> None:
    async with chatting(browser) as chat:
        await chat.answered("hi", "```py\nx\n```\n\n[a](https://example.org)")
        nameless = await chat.page.run(
            "[...document.querySelectorAll('button, input, textarea, a')].filter((e) => !(e.getAttribute('aria-label')"
            " || e.innerText.trim() || e.labels?.length)).map((e) => e.outerHTML)"
        )
        assert nameless == []
        await chat.page.run("document.querySelector('.skip').focus()")
        reached: list[str] = []
        while reached[-1:] != ["prompt"] and len(reached) < 40:
            await chat.page.press("Tab")
            reached.append(
                await chat.page.run(
                    "document.activeElement.id || document.activeElement.getAttribute('aria-label')"
                    " || document.activeElement.innerText"
                )
            )
        order = ["new-chat", "theme", "open-settings", "Edit this message", "py code", "Answer again", "prompt"]
        positions = [reached.index(name) for name in order]
        assert positions == sorted(positions)


async def test_light_dark_and_a_choice_that_is_kept(browser: Browser) -> None:
    async with chatting(browser) as chat:
        background = "getComputedStyle(document.body).backgroundColor"
        light = await chat.page.run(background)
        await chat.page.view(dark=True)
        dark = await chat.page.run(background)
        assert light != dark
        await chat.page.click("#theme")
        assert await chat.page.run(background) == light
        await chat.page.reload()
        assert await chat.page.run(background) == light
        await chat.page.click("#theme")
        await chat.page.view()
        assert await chat.page.run(background) == dark


async def test_reading_further_up_is_not_disturbed(browser: Browser) -> None:
    async with chatting(browser, height=500) as chat:
        stream = await chat.ask("long")
        stream.say(*(f"Line {i}\n\n" for i in range(60)))
        await chat.until_shown("Line 59")
        at_end = (
            "(({scrollTop: t, scrollHeight: h, clientHeight: c}) => h - c - t < 4)(document.getElementById('scroll'))"
        )
        assert await chat.page.until(at_end)
        await chat.page.run("document.getElementById('scroll').scrollTop = 0")
        await chat.page.until("!document.getElementById('to-end').hidden")
        stream.say("The end")
        await chat.until_shown("The end")
        assert await chat.page.run("document.getElementById('scroll').scrollTop") == 0
        await chat.page.click("#to-end")
        assert await chat.page.until(at_end)
        stream.say("\n\nLine 60\n\nLine 61")
        await chat.until_shown("Line 61")
        assert await chat.page.until(at_end)


async def test_without_a_browser_the_tests_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CHROMIUM", raising=False)
    with pytest.raises(BrowserMissingError, match="apt-get install chromium"):
        cdp.executable()
