"""Against a hub of our own on a local port, in a process of its own: the client reads its address when imported."""

import hashlib
import http.server
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from urllib.parse import unquote

import pytest

from streamgen.errors import ModelLoadError
from streamgen.loader import hub
from tests.unit.loader.folder_for_tests import write_folder

COMMIT = "c" * 40
REPO = "someone/tiny"


class Hub(http.server.ThreadingHTTPServer):
    """Answers for one repository with the files of a folder; everything else is not found."""

    daemon_threads = True

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.asked = folder, []
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"

    def files(self):
        return {str(path.relative_to(self.folder)): path for path in sorted(self.folder.rglob("*")) if path.is_file()}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = unquote(self.path.split("?")[0])
        self.server.asked.append(path)
        files = self.server.files()
        if (file := re.fullmatch(rf"/{REPO}/resolve/(?:main|{COMMIT})/(.+)", path)) and file[1] in files:
            data = files[file[1]].read_bytes()
            self.answer(200, data, ETag=f'"{hashlib.sha1(data).hexdigest()}"')
        elif re.fullmatch(rf"/api/models/{REPO}(/revision/(main|{COMMIT}))?", path):
            siblings = [{"rfilename": name} for name in files]
            self.answer(200, json.dumps({"id": REPO, "sha": COMMIT, "siblings": siblings}).encode())
        elif path.startswith(f"/api/models/{REPO}/tree/"):
            entries = [{"type": "file", "path": n, "oid": "0" * 40, "size": p.stat().st_size} for n, p in files.items()]
            self.answer(200, json.dumps(entries).encode())
        elif path.startswith("/api/models/gated/"):
            self.answer(403, b"{}", **{"X-Error-Code": "GatedRepo"})
        else:
            self.answer(404, b"{}", **{"X-Error-Code": "RepoNotFound"})

    def answer(self, status, data, **headers):
        self.send_response(status)
        for name, value in {"X-Repo-Commit": COMMIT, "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)


OPEN = """
import sys
from streamgen.config import ModelConfig
from streamgen.errors import StreamgenError
from streamgen.loader import hub, open_checkpoint
hub.TIMEOUT = float(sys.argv[3])
try:
    checkpoint = open_checkpoint(ModelConfig(model=sys.argv[1], load_format=sys.argv[2]))
    print("opened", checkpoint.name, checkpoint.num_tensors)
except StreamgenError as error:
    print("refused", error.message)
"""


def open_in_process(model, endpoint, home, *, load_format="auto", offline=False, timeout=30.0):
    """What the process said, and how many seconds it took."""
    environment = os.environ | {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "1" if offline else "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "NO_PROXY": "127.0.0.1",
    }
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", OPEN, model, load_format, str(timeout)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), time.monotonic() - began


@pytest.fixture
def server(tmp_path):
    folder = write_folder(tmp_path / "tiny")
    for name in ("pytorch_model.bin", "modeling_tiny.py", "training_args.bin", "README.md", "consolidated.safetensors"):
        (folder / name).write_bytes(b"not wanted")
    hub = Hub(folder)
    yield hub
    hub.shutdown()
    hub.server_close()


def test_a_model_is_fetched_once_and_then_read_from_the_cache(server, tmp_path):
    home = tmp_path / "home"
    said, _ = open_in_process(REPO, server.address, home, load_format="dummy")
    assert said == f"opened {REPO} 0"
    assert not any("safetensors" in path for path in server.asked if "/resolve/" in path)
    said, _ = open_in_process(REPO, server.address, home)
    assert said == f"opened {REPO} 1"
    unwanted = ("pytorch_model.bin", "modeling_tiny.py", "training_args.bin", "consolidated.safetensors")
    assert not [path for path in server.asked if path.endswith(unwanted)]
    server.asked.clear()
    for offline in (False, True):
        said, _ = open_in_process(REPO, server.address, home, offline=offline)
        assert said == f"opened {REPO} 1"
    assert server.asked == []


def test_what_the_hub_refuses_is_said(server, tmp_path):
    said, _ = open_in_process("someone/else", server.address, tmp_path / "home")
    assert said.startswith("refused")
    assert "the hub has no such model, or it is private" in said
    said, _ = open_in_process("gated/model", server.address, tmp_path / "home")
    assert "its owner grants access on request" in said


def test_a_hub_that_nobody_reaches_is_an_error_within_seconds(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening: connections are refused
        said, seconds = open_in_process(REPO, f"http://127.0.0.1:{taken.getsockname()[1]}", tmp_path / "home")
    assert said.startswith("refused")
    assert "the Hugging Face hub cannot be reached" in said
    assert seconds < 30


def test_a_hub_that_never_answers_is_an_error_within_seconds(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        said, seconds = open_in_process(REPO, address, tmp_path / "home", timeout=0.5)
    assert "cannot be reached" in said
    assert seconds < 30
    assert hub.TIMEOUT <= 5


def test_offline_is_respected(server, tmp_path):
    said, _ = open_in_process(REPO, server.address, tmp_path / "home", offline=True)
    assert "HF_HUB_OFFLINE forbids fetching it" in said
    assert server.asked == []


def test_a_snapshot_is_complete_only_with_all_that_it_names(tmp_path):
    folder = write_folder(tmp_path / "m", weights=False)
    assert hub._is_complete(folder, weights=False)
    assert not hub._is_complete(folder, weights=True)
    (folder / "model.safetensors").touch()
    assert hub._is_complete(folder, weights=True)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "other.safetensors"}}))
    assert not hub._is_complete(folder, weights=True)
    for damaged in ("", "[]", "{}", '{"weight_map": {"a": 1}}'):
        index.write_text(damaged)
        assert not hub._is_complete(folder, weights=True)
    (folder / "config.json").unlink()
    assert not hub._is_complete(folder, weights=False)


@pytest.mark.parametrize("name", ["someone/tiny", "gpt2"])
def test_an_id_offline_is_refused_without_a_word_to_anybody(name):
    with pytest.raises(ModelLoadError, match="not in the local cache"):
        hub.fetch_snapshot(name, weights=True)
