"""Damaged and forged bytes of sessions: a typed error or the same snapshot, and never more memory than is due."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pinfold.errors import SessionCorruptError
from pinfold.kv import header as headers
from pinfold.kv.codec import codec_of, fold, unfold
from pinfold.kv.lossless import pack_bytes, unpack_bytes
from pinfold.kv.recipe import LADDER
from pinfold.kv.snapshot import Opaque, Section, Snapshot
from tests.support.kv_samples import Geometry, make_recipe, make_section

TOKENS = 24
GEOMETRY = Geometry(2, 1)
RECIPE = make_recipe(GEOMETRY, 60)
ORIGINAL = Snapshot(
    TOKENS, b"headhead", [make_section(GEOMETRY, TOKENS), make_section(GEOMETRY, TOKENS, 1), Opaque(b"state" * 99, "")]
)
DATA = fold(ORIGINAL, RECIPE, LADDER[4]).data
MOST = ORIGINAL.nbytes + 4 * TOKENS * 2
SPARE = 16 << 20  # a header of the largest size, read by pydantic, takes most of it


def open_it(data: bytes) -> Snapshot:
    return unfold(data, lambda d: RECIPE if d == RECIPE.digest() else None, most_bytes=MOST, threads=1)


def flat(snapshot: Snapshot) -> bytes:
    parts = [snapshot.head, str(snapshot.tokens).encode()]
    for section in snapshot.sections:
        if isinstance(section, Section):
            parts += [section.positions.tobytes(), *(plane.rows.tobytes() for plane in section.planes)]
        else:
            parts.append(section.data)
    return b"|".join(parts)


EXPECTED = flat(open_it(DATA))


def taken_apart() -> tuple[dict[str, Any], list[bytes]]:
    (size,) = np.frombuffer(DATA[8:12], dtype="<u4")
    header, at = headers.read_header(memoryview(DATA), MOST)
    assert at == 12 + size
    blobs = []
    for section in header.sections:
        for length in section.blobs:
            blobs.append(DATA[at : at + length])
            at += length
    return json.loads(header.model_dump_json()), blobs


def put_together(header: dict[str, Any] | bytes, blobs: list[bytes]) -> bytes:
    text = pack_bytes(header if isinstance(header, bytes) else json.dumps(header).encode())
    return b"".join((DATA[:8], len(text).to_bytes(4, "little"), text, *blobs))


def check(data: bytes, *, may_differ: bool = False) -> bool:
    """Whether it was refused. A forger who packs anew can say anything that is well formed: finite, and no larger."""
    tracemalloc.reset_peak()
    try:
        back = open_it(data)
    except SessionCorruptError:
        refused = True
    else:
        refused = False
        if not may_differ:
            assert flat(back) == EXPECTED
        for section, plane in back.planes():
            assert -(2**31) <= section.seq < 2**31
            if plane.kind == "f16":
                assert np.isfinite(plane.rows.view(np.float16)).all()
    assert tracemalloc.get_traced_memory()[1] < MOST + SPARE
    try:
        codec_of(data)
    except SessionCorruptError:
        assert refused
    return refused


@pytest.fixture(autouse=True)
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def test_flips_and_cuts() -> None:
    rng = random.Random(0)  # noqa: S311
    refused = 0
    for _ in range(1500):
        data = bytearray(DATA)
        for _ in range(rng.choice([1, 1, 2, 8])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        refused += check(bytes(data))
    assert refused > 1400
    for cut in [*range(40), *(rng.randrange(len(DATA)) for _ in range(160))]:
        assert check(DATA[:cut])
        assert check(DATA[:cut] + bytes(len(DATA) - cut)) or DATA.endswith(bytes(len(DATA) - cut))
    assert check(DATA + b"x")


def test_headers_that_say_other_things() -> None:
    rng = random.Random(1)  # noqa: S311
    wrong = [
        0,
        1,
        -1,
        2**31,
        2**63,
        2**64,
        10**300,
        1e300,
        -0.0,
        1e-300,
        None,
        True,
        "",
        "f16",
        "exact",
        "opaque",
        [],
        {},
    ]
    for _ in range(1000):
        header, blobs = taken_apart()
        node: Any = header
        while True:
            key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
            if not isinstance(node[key], (dict, list)) or not node[key] or rng.random() < 0.2:
                break
            node = node[key]
        node[key] = rng.choice(wrong)
        check(put_together(header, blobs), may_differ=True)


def test_blobs_that_hold_other_things() -> None:
    rng = random.Random(2)  # noqa: S311
    for _ in range(600):
        header, blobs = taken_apart()
        at = rng.randrange(len(blobs))
        try:
            size = int(np.frombuffer(unpack_bytes(memoryview(blobs[at]), len(blobs[at])), dtype=np.uint8).size)
        except SessionCorruptError:
            size = rng.choice([0, 2, 24, 48, 64, 128, 256, 100_000])
        blobs[at] = rng.choice(
            [b"", b"\0", pack_bytes(rng.randbytes(size)), pack_bytes(b"\xff" * size), blobs[rng.randrange(len(blobs))]]
        )
        lengths = iter(blobs)
        for section in header["sections"]:
            section["blobs"] = [len(next(lengths)) for _ in section["blobs"]]
        check(put_together(header, blobs), may_differ=True)


def test_means_that_are_no_numbers() -> None:
    header, blobs = taken_apart()
    for bits in (0x7C00, 0xFC00, 0x7E00):
        means = np.full(64, bits, dtype="<u2").view(np.uint8).reshape(-1, 2).T.reshape(-1)
        blobs[1] = pack_bytes(means)
        header["sections"][0]["blobs"][1] = len(blobs[1])
        assert check(put_together(header, blobs))


def test_the_largest_norms_and_steps_stay_finite() -> None:
    header, blobs = taken_apart()
    blobs[2] = pack_bytes(b"\xff" * 48)
    header["sections"][0]["blobs"][2] = len(blobs[2])
    header["rung"] = [4.0, 4.0]
    assert not check(put_together(header, blobs), may_differ=True)


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    header, blobs = taken_apart()
    change(header)
    return put_together(header, blobs)


def test_what_each_field_may_not_say() -> None:
    refusals: list[Callable[[dict[str, Any]], object]] = [
        lambda h: h.update(tokens=1 << 24),
        lambda h: h.update(tokens=1),
        lambda h: h.update(recipe="00" * 32),
        lambda h: h.update(recipe=None),
        lambda h: h.update(rung=None),
        lambda h: h.update(rung=[float("nan"), 1.0]),
        lambda h: h.update(head="xy"),
        lambda h: h.update(more=1),
        lambda h: h["sections"][0].update(seq=1 << 31),
        lambda h: h["sections"][0].update(k_size=16),
        lambda h: h["sections"][0].update(k_size=0),
        lambda h: h["sections"][0].update(rope=[1e4, 1.0, 64, True]),
        lambda h: h["sections"][0].update(rope=[1e4, 1.0, 31, True]),
        lambda h: h["sections"][0].update(rope=[float("inf"), 1.0, 32, True]),
        lambda h: h["sections"][0].update(rope=[-1.0, 1.0, 32, True]),
        lambda h: h["sections"][0].update(rope=[1e4, 1e300, 32, True]),
        lambda h: h["sections"][0].update(placed=True),
        lambda h: h["sections"][0].update(how="exact"),
        lambda h: h["sections"][0].update(how="opaque"),
        lambda h: h["sections"][0]["planes"].pop(),
        lambda h: h["sections"][0]["planes"][0].update(kind="q8_0"),
        lambda h: h["sections"][0]["planes"][0].update(width=1 << 20),
        lambda h: h["sections"][0]["blobs"].__setitem__(0, h["sections"][0]["blobs"][0] + 1),
        lambda h: h["sections"][2].update(size=1 << 40),
        lambda h: h["sections"][2].update(size=494),
        lambda h: h["sections"].extend([h["sections"][2]] * 40),
    ]
    for number, change in enumerate(refusals):
        assert check(changed(change)), number


def test_headers_that_are_no_headers() -> None:
    _, blobs = taken_apart()
    deep = b"[" * 100_000
    many = b'{"sections":[' + b"{}," * 80_000 + b"{}]}"
    for text in (b"", b"null", b"\xff\xfe", deep, b'{"a":' * 40_000, many, b" " * (1 << 19), b"1" * 5000):
        assert check(put_together(text, blobs))
    for size in (0, 1, 2**31, 2**32 - 1):
        assert check(DATA[:8] + size.to_bytes(4, "little") + DATA[12:])
    skippable = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"
    assert check(DATA[:8] + len(skippable).to_bytes(4, "little") + skippable + b"".join(blobs))
