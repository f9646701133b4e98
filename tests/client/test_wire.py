"""HTTP as bytes: whatever comes in, in whatever pieces, is an answer, or an error of ours; never a hang."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.client import sse, wire
from rota.client.errors import BadAnswer, RotaError, Unreachable


def whole(data: bytes, **limits: int) -> tuple[int, bytes, wire.Answer]:
    answer = wire.Answer(**limits)
    answer.feed(data)
    if not answer.done:
        answer.feed(b"")
    return answer.status, answer.take(), answer


def test_a_request_is_its_lines_and_its_body():
    data = wire.request("POST", "/runs?dry_run=true", {"Host": "h", "X-Auth-Token": "t"}, b"{}")
    assert data == b"POST /runs?dry_run=true HTTP/1.1\r\nHost: h\r\nX-Auth-Token: t\r\nContent-Length: 2\r\n\r\n{}"


def test_a_post_without_a_body_says_so():
    assert b"Content-Length: 0\r\n" in wire.request("POST", "/x", {})
    assert b"Content-Length" not in wire.request("GET", "/x", {})


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nb", "\0", "é", "\x7f"])
def test_a_header_cannot_break_out_of_its_line(value):
    with pytest.raises(ValueError, match="X-Auth-Token: only printable ASCII"):
        wire.request("GET", "/", {"X-Auth-Token": value})


def test_a_path_segment_is_quoted_whatever_it_holds():
    assert wire.quote("../a b?c#d/é\udcff") == "..%2Fa%20b%3Fc%23d%2F%C3%A9%FF"
    assert wire.target("/runs", {"user": "a&b=c"}) == "/runs?user=a%26b%3Dc"


def test_a_body_of_known_length_keeps_the_connection():
    status, body, answer = whole(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Next-Cursor:  abc \r\n\r\nhello")
    assert (status, body, answer.keep_alive) == (200, b"hello", True)
    assert answer.headers["x-next-cursor"] == "abc"


def test_chunks_and_trailers():
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n1\r\n!\r\n0\r\nT: 1\r\n\r\n"
    status, body, answer = whole(data)
    assert (status, body, answer.keep_alive, answer.done) == (200, b"hello!", True, True)


def test_a_body_without_a_length_ends_with_the_connection():
    status, body, answer = whole(b"HTTP/1.1 200 OK\r\n\r\nall of it")
    assert (status, body, answer.keep_alive) == (200, b"all of it", False)


@pytest.mark.parametrize("head", [b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 200 OK\r\nConnection: close\r\n"])
def test_who_wants_to_close_is_not_asked_again(head):
    assert not whole(head + b"Content-Length: 0\r\n\r\n")[2].keep_alive


def test_interim_answers_are_skipped():
    assert whole(b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + b"HTTP/1.1 204 No Content\r\n\r\n")[0] == 204


def test_bytes_after_the_end_spoil_the_connection():
    answer = whole(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 200 OK")[2]
    assert answer.left_over and not answer.keep_alive


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak HTTP"),
        (b"HTTP/2 200\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 2x0 OK\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 999 OK\r\n\r\n", "status 999"),
        (b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "not a number"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "not a number"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "not clear"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "not clear"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", "compressed"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "no size"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", "no size"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n", "longer than it said"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 2000, "malformed"),
        (b"HTTP/1.1 101 Switching\r\n\r\n", "makes no sense"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000, "longer than"),
    ],
)
def test_what_is_no_answer_is_said_plainly(data, said):
    with pytest.raises(BadAnswer, match=said):
        whole(data)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200",
        b"",
    ],
)
def test_an_answer_that_is_cut_off_may_be_asked_for_again(data):
    with pytest.raises(Unreachable) as caught:
        answer = wire.Answer()
        if data:
            answer.feed(data)
        answer.feed(b"")
    assert caught.value.sent


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 101,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"32\r\n" + b"x" * 50 + b"\r\n33\r\n" + b"x" * 51,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 50,
    ],
)
def test_an_endless_body_is_not_read(data):
    with pytest.raises(BadAnswer, match="larger than 100 bytes"):
        whole(data, max_body=100)


PIECES = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from([
            b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 C\r\n\r\n", b"HTTP/1.0 503 x\r\n", b"Content-Length: 3\r\n",
            b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"\r\n", b"3\r\nabc\r\n", b"0\r\n\r\n",
            b"\n", b":",
        ]),
    ),
    max_size=20,
)  # fmt: skip


@given(PIECES)
def test_any_bytes_end_in_an_answer_or_an_error_of_ours(pieces):
    answer = wire.Answer(max_body=1000)
    try:
        for piece in pieces:
            if piece:
                answer.feed(piece)
        answer.feed(b"")
    except RotaError:
        return
    assert answer.done


@given(st.binary(max_size=300), st.lists(st.integers(1, 30), min_size=1, max_size=50), st.booleans())
def test_pieces_make_no_difference(body, sizes, chunked):
    if chunked:
        cut = [body[i : i + 7] for i in range(0, len(body), 7)]
        data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        data += b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in cut) + b"0\r\n\r\n"
    else:
        data = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    answer, got, at, turn = wire.Answer(), b"", 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        answer.feed(data[at : at + size])
        got += answer.take()
        at, turn = at + size, turn + 1
    assert (answer.done, got, answer.left_over) == (True, body, b"")


# -- events -----------------------------------------------------------------------------------------------------------


def test_events_with_names_ids_comments_and_lines():
    text = b": hello\n\nid: 7\nevent: run\ndata: a\ndata: b\n\ndata:c\r\n\r\ndata: cut off\n"
    found = sse.Events().feed(text)
    assert [(event.name, event.data, event.id) for event in found] == [("run", "a\nb", "7"), ("message", "c", "7")]


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_any_bytes_are_events_or_nothing(pieces):
    parser = sse.Events()
    one_by_one = [event.data for piece in pieces for event in parser.feed(piece)]
    at_once = [event.data for event in sse.Events().feed(b"".join(pieces))]
    assert one_by_one == at_once


def test_an_endless_event_is_not_kept(monkeypatch):
    monkeypatch.setattr(sse, "MAX_EVENT", 1000)
    parser = sse.Events()
    with pytest.raises(BadAnswer, match="larger than"):
        for _ in range(100):
            parser.feed(b"data: " + b"x" * 100)
    with pytest.raises(BadAnswer, match="larger than"):
        for _ in range(100):
            parser.feed(b"data: " + b"x" * 100 + b"\n")


def test_an_event_of_empty_lines_without_end_is_not_kept(monkeypatch):
    monkeypatch.setattr(sse, "MAX_EVENT", 1000)
    parser = sse.Events()
    with pytest.raises(BadAnswer, match="larger than"):
        for _ in range(100):
            parser.feed(b"data:\n")
