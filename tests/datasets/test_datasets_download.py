"""Downloads from a local server: the tables, the cache, and the messages when a download fails."""

import csv
import gzip
import io
import logging
import os
import subprocess
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gpx_scale import InputError
from gpx_scale.datasets import download, formats, sources
from gpx_scale.datasets.csv_table import content_digest
from gpx_scale.datasets.sources import DataUnavailable, Source, load_table

TOY = {name: (str(k), str(k + 0.5)) for k, name in enumerate(formats.FISH)}
TOY_PATH = "/static/toy.zip"


class Server:
    """A server with a list of answers (status, headers, body) for each path.

    A request gets the next answer of its path; the last answer is repeated.
    """

    def __init__(self):
        self.answers, self.requests, self.agents = {}, [], []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.requests.append(self.path)
                outer.agents.append(self.headers["User-Agent"])
                queue = outer.answers.get(self.path, [(404, {}, b"")])
                answer = queue.pop(0) if len(queue) > 1 else queue[0]
                status, headers, body = answer() if callable(answer) else answer
                self.send_response(status)
                for name, value in ({"Content-Length": len(body)} | headers).items():
                    if value is not None:
                        self.send_header(name, str(value))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.handle_error = lambda *_: None  # of clients that hang up
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.02,))
        self.thread.start()

    def close(self):
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


@contextmanager
def serving(monkeypatch, folder):
    """Replace all publishers by a local server, with an empty cache in `folder` and short pauses.

    The user has no folder of data.
    """
    started = Server()
    monkeypatch.delenv("GPX_SCALE_DATA", raising=False)
    monkeypatch.setenv("GPX_SCALE_CACHE", str(folder / "cache"))
    monkeypatch.setenv("GPX_SCALE_MIRROR", started.url)
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0.01)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    try:
        yield started
    finally:
        started.close()


@pytest.fixture
def server(monkeypatch, tmp_path):
    with serving(monkeypatch, tmp_path) as started:
        yield started


@pytest.fixture
def cache(server, tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def toy(monkeypatch, server):
    """A source of two rows, which is served."""
    source = Source(
        "Toy",
        f"https://publisher.invalid{TOY_PATH}",
        formats.fish,
        formats.FISH,
        content_digest(TOY, formats.FISH),
    )
    monkeypatch.setitem(sources.SOURCES, "toy.csv", source)
    server.answers[TOY_PATH] = [(200, {}, fish_zip(TOY))]
    return source


def zipped(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def lines_of(table, delimiter, header=None, quote=csv.QUOTE_MINIMAL):
    buffer = io.StringIO()
    if header:
        csv.writer(buffer, delimiter=delimiter, lineterminator="\n", quoting=quote).writerow(header)
    csv.writer(buffer, delimiter=delimiter, lineterminator="\n").writerows(rows_of(table))
    return buffer.getvalue()


def rows_of(table):
    return list(zip(*table.values(), strict=True))


def with_a_flipped_byte(archive, member):
    """In the packed bytes of the member."""
    at = archive.index(member.encode()) + len(member) + 4
    return archive[:at] + bytes([archive[at] ^ 0xFF]) + archive[at + 1 :]


def fish_zip(table):
    return zipped(**{"qsar_fish_toxicity.csv": lines_of(table, ";")})


def test_a_download_is_kept_and_not_asked_for_again(toy, server, cache):
    assert load_table("toy.csv") == TOY
    assert load_table("toy.csv") == TOY
    assert server.requests == [TOY_PATH]
    assert server.agents[0].startswith("gpx_scale")
    assert os.listdir(cache) == ["toy.csv"]


def test_the_users_folder_comes_first_and_is_not_checked(toy, server, cache, monkeypatch, tmp_path):
    (tmp_path / "toy.csv").write_text("a\n1\n")
    monkeypatch.setenv("GPX_SCALE_DATA", str(tmp_path))
    assert load_table("toy.csv") == {"a": ("1",)}
    assert not server.requests
    assert not cache.exists()


def test_other_content_is_refused_and_nothing_is_kept(toy, server, cache):
    other = {**TOY, "LC50": ("6", "6.6")}
    server.answers[TOY_PATH] = [(200, {}, fish_zip(other))]
    with pytest.raises(DataUnavailable) as caught:
        load_table("toy.csv")
    for part in (
        server.url + TOY_PATH,
        toy.sha256,
        content_digest(other, formats.FISH),
        "toy.zip",
        "GPX_SCALE_DATA",
    ):
        assert part in str(caught.value)
    assert os.listdir(cache) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_text(path.read_text().replace("6.5", "6.6")),
        lambda path: path.write_text(path.read_text()[:-4]),
        lambda path: path.write_text(path.read_text().replace("LC50", "LC51")),
        lambda path: path.write_bytes(b"\xff\xfe"),
    ],
)
def test_a_damaged_cache_is_said_and_removed(damage, toy, server, cache):
    load_table("toy.csv")
    damage(cache / "toy.csv")
    with pytest.raises(DataUnavailable, match=r"Call again to download it"):
        load_table("toy.csv")
    assert os.listdir(cache) == []
    assert load_table("toy.csv") == TOY
    assert len(server.requests) == 2


def test_a_broken_compressed_file_in_the_cache(toy, cache, monkeypatch):
    monkeypatch.setitem(sources.SOURCES, "toy.csv.gz", toy)
    load_table("toy.csv.gz")
    whole = (cache / "toy.csv.gz").read_bytes()
    assert gzip.decompress(whole).startswith(b"CIC0")
    (cache / "toy.csv.gz").write_bytes(whole[:-12])
    with pytest.raises(DataUnavailable, match=r"toy\.csv\.gz.*removed from the cache"):
        load_table("toy.csv.gz")


def test_a_body_that_breaks_off(toy, server, cache):
    body = fish_zip(TOY)
    server.answers[TOY_PATH] = [(200, {"Content-Length": len(body)}, body[:-10])]
    with pytest.raises(DataUnavailable, match=f"{len(body) - 10} of {len(body)} bytes came"):
        load_table("toy.csv")
    assert len(server.requests) == download.MAX_TRIES
    assert os.listdir(cache) == []
    server.answers[TOY_PATH] = [(200, {"Content-Length": len(body)}, body[:-10]), (200, {}, body)]
    assert load_table("toy.csv") == TOY


def test_a_body_without_a_length(toy, server):
    server.answers[TOY_PATH] = [(200, {"Content-Length": None}, fish_zip(TOY))]
    assert load_table("toy.csv") == TOY


def test_chunks_that_break_off(toy, server):
    broken = (200, {"Content-Length": None, "Transfer-Encoding": "chunked"}, b"ff\r\nnot as many")
    server.answers[TOY_PATH] = [broken]
    with pytest.raises(DataUnavailable, match="the answer broke off"):
        load_table("toy.csv")
    server.answers[TOY_PATH] = [broken, (200, {}, fish_zip(TOY))]
    assert load_table("toy.csv") == TOY


def test_not_found_is_asked_for_once(toy, server):
    server.answers.clear()
    with pytest.raises(DataUnavailable, match="HTTP 404"):
        load_table("toy.csv")
    assert server.requests == [TOY_PATH]


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_passing_fault_is_tried_again(status, toy, server):
    server.answers[TOY_PATH] = [(status, {}, b"busy"), (200, {}, fish_zip(TOY))]
    assert load_table("toy.csv") == TOY
    assert len(server.requests) == 2


def test_a_lasting_fault_ends(toy, server):
    server.answers[TOY_PATH] = [(502, {}, b"")]
    with pytest.raises(DataUnavailable, match="HTTP 502"):
        load_table("toy.csv")
    assert len(server.requests) == download.MAX_TRIES


def test_a_time_out_is_tried_again(toy, server, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 0.2)

    def late():
        time.sleep(0.6)
        return 404, {}, b""

    server.answers[TOY_PATH] = [late, (200, {}, fish_zip(TOY))]
    assert load_table("toy.csv") == TOY


def test_refused(toy, server, cache, monkeypatch):
    server.http.shutdown()
    server.http.socket.close()
    began = time.perf_counter()
    with pytest.raises(DataUnavailable) as caught:
        load_table("toy.csv")
    assert time.perf_counter() - began < 5
    message = str(caught.value)
    for part in (
        "Toy",
        server.url + TOY_PATH,
        "refused",
        "toy.csv",
        "toy.zip",
        "GPX_SCALE_DATA",
        "not set",
    ):
        assert part in message
    assert isinstance(caught.value, InputError)
    monkeypatch.setenv("GPX_SCALE_DATA", str(cache.parent))
    with pytest.raises(DataUnavailable) as caught:
        load_table("toy.csv")
    assert f"into {str(cache.parent)!r}" in str(caught.value)


def test_a_name_that_is_not_known(toy, monkeypatch):
    monkeypatch.setenv("GPX_SCALE_MIRROR", "http://publisher.invalid")
    with pytest.raises(DataUnavailable, match=r"http://publisher\.invalid/static/toy\.zip: "):
        load_table("toy.csv")


def test_redirections(toy, server, tmp_path):
    (tmp_path / "secret").write_bytes(fish_zip(TOY))
    server.answers["/moved"] = [(200, {}, fish_zip(TOY))]
    for aim in (
        f"file://{tmp_path}/secret",
        "ftp://127.0.0.1/secret",
        "data:,secret",
        "/static/toy.zip",
    ):
        server.answers[TOY_PATH] = [(302, {"Location": aim}, b"")]
        with pytest.raises(DataUnavailable, match=r"HTTP 302|unknown url type"):
            load_table("toy.csv")
    server.answers[TOY_PATH] = [(302, {"Location": "/moved"}, b"")]
    assert load_table("toy.csv") == TOY


def test_only_http_is_opened(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(OSError, match="unknown url type"):
        download.fetch(f"file://{tmp_path}/file", io.BytesIO(), "a file")


def test_too_long(toy, server, monkeypatch):
    monkeypatch.setattr(download, "MAX_BYTES", 100)
    body = fish_zip(TOY)
    assert len(body) > 100
    for headers in ({}, {"Content-Length": None}):
        server.answers[TOY_PATH] = [(200, headers, body)]
        with pytest.raises(DataUnavailable, match="longer than"):
            load_table("toy.csv")


def test_a_member_that_unpacks_to_too_much(toy, server, monkeypatch):
    monkeypatch.setattr(formats, "MAX_BYTES", 10_000)
    server.answers[TOY_PATH] = [(200, {}, zipped(**{"qsar_fish_toxicity.csv": "0" * 20_000}))]
    with pytest.raises(DataUnavailable, match="longer than 10,000 bytes"):
        load_table("toy.csv")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>moved</html>", "zip"),
        (fish_zip(TOY)[:-30], "zip"),
        (with_a_flipped_byte(fish_zip(TOY), "qsar_fish_toxicity.csv"), "or is damaged"),
        (zipped(other="1;2"), r"no 'qsar_fish_toxicity\.csv'; it has other"),
        (zipped(**{"qsar_fish_toxicity.csv": "1;2;3\n"}), "row 1 has 3 cells and not 7"),
        (zipped(**{"qsar_fish_toxicity.csv": b"\xff\xfe1"}), "utf-8"),
        (zipped(**{"qsar_fish_toxicity.csv": ""}), "no rows"),
    ],
)
def test_what_is_not_the_publishers_file(body, message, toy, server, cache):
    server.answers[TOY_PATH] = [(200, {}, body)]
    with pytest.raises(DataUnavailable, match=message):
        load_table("toy.csv")
    assert os.listdir(cache) == []


def test_a_cache_that_cannot_be_written(toy, server, monkeypatch, tmp_path):
    (tmp_path / "in the way").write_text("a file")
    monkeypatch.setenv("GPX_SCALE_CACHE", str(tmp_path / "in the way" / "cache"))
    with pytest.raises(DataUnavailable, match=r"in the way.*GPX_SCALE_CACHE"):
        load_table("toy.csv")
    assert not server.requests


def test_a_cache_without_permission(toy, server, cache):
    cache.mkdir(mode=0o500)
    if os.access(cache, os.W_OK):
        pytest.skip("permissions do not hold for this user")
    with pytest.raises(DataUnavailable, match=r"permission.*GPX_SCALE_CACHE"):
        load_table("toy.csv")
    assert not server.requests


def test_threads_at_once(toy, server, cache):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(load_table, ["toy.csv"] * 16))
    assert found == [TOY] * 16
    assert os.listdir(cache) == ["toy.csv"]


def test_processes_at_once(toy, server, cache):
    code = (
        "import sys; from gpx_scale.datasets import formats, sources\n"
        f"one = sources.Source('Toy', {toy.url!r}, formats.fish, formats.FISH, {toy.sha256!r})\n"
        "sources.SOURCES['toy.csv'] = one\n"
        "print(len(sources.load_table('toy.csv')['LC50']))\n"
    )
    ready = threading.Barrier(2, timeout=120)

    def together():
        ready.wait()
        return 200, {}, fish_zip(TOY)

    server.answers[TOY_PATH] = [together]
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [one.communicate(timeout=120)[0] for one in running] == ["2\n", "2\n"]
    assert [one.returncode for one in running] == [0, 0]
    assert len(server.requests) == 2
    assert os.listdir(cache) == ["toy.csv"]
    assert load_table("toy.csv") == TOY


def test_progress_is_shown_where_asked_for(toy, server, cache, capsys, monkeypatch, caplog):
    server.answers[TOY_PATH] = [(500, {}, b""), (200, {}, fish_zip(TOY))]
    with caplog.at_level(logging.INFO, "gpx_scale"):
        load_table("toy.csv")
    assert capsys.readouterr().err == ""  # not a terminal
    assert "HTTP 500" in caplog.text
    (cache / "toy.csv").unlink()
    load_table("toy.csv", progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"[gpx_scale] Toy: downloading {server.url}{TOY_PATH}"
    assert lines[-1].startswith("[gpx_scale] Toy: ")
    (cache / "toy.csv").unlink()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    load_table("toy.csv", progress=False)
    assert capsys.readouterr().err == ""
    (cache / "toy.csv").unlink()
    load_table("toy.csv")
    assert "downloading" in capsys.readouterr().err
