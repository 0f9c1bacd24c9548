"""Records are strict, and keys and fingerprints tell apart what differs."""

from __future__ import annotations

import hashlib
from array import array

import pytest

from pinfold.errors import InvalidRequestError
from pinfold.store import explain_mismatch, fingerprint_of, salt_digest
from pinfold.store.records import int32, key_of, little_endian
from tests.support.store_sessions import FACETS, NO_SALT, record

PRINT = fingerprint_of(FACETS)


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_tokens": 0},
        {"n_tokens": 1 << 40},
        {"fingerprint": "0" * 64},
        {"salt": "short"},
        {"salt": NO_SALT + "\n"},
        {"kind": "other"},
        {"created": float("nan")},
        {"raw_bytes": -1},
        {"extra": {"x": float("nan")}},
        {"extra": {"x": "y" * (65 << 10)}},
        {"unknown": 1},
    ],
    ids=str,
)
def test_what_is_no_record_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        record("x", **wrong)  # type: ignore[arg-type]


def test_keys_differ_by_everything_that_names_an_entry() -> None:
    keys = {
        key_of("session", "a", NO_SALT, PRINT),
        key_of("pin", "a", NO_SALT, PRINT),
        key_of("session", "A", NO_SALT, PRINT),
        key_of("session", "a", salt_digest("s"), PRINT),
        key_of("session", "a", NO_SALT, "0" * 64),
        key_of("recent", "", NO_SALT, PRINT, [1, 2]),
        key_of("recent", "", NO_SALT, PRINT, [1, 3]),
    }
    assert len(keys) == 7


def test_a_name_is_never_taken_for_the_digest_of_tokens() -> None:
    nameless = key_of("recent", "", NO_SALT, PRINT, [7])
    digest = hashlib.sha256(little_endian(array("i", [7]))).hexdigest()
    assert key_of("recent", digest, NO_SALT, PRINT) != nameless


def test_no_salt_is_not_the_empty_salt() -> None:
    assert len({salt_digest(None), salt_digest(""), salt_digest("none"), salt_digest("\ud800")}) == 4


def test_token_ids_are_int32() -> None:
    with pytest.raises(InvalidRequestError, match="32 bits"):
        int32([1 << 40])
    assert little_endian(int32([1, -1])) == b"\x01\0\0\0\xff\xff\xff\xff"


def test_a_mismatch_names_the_facets_that_differ() -> None:
    entry = record("x")
    assert explain_mismatch(entry, FACETS) == "nothing differs"
    other = {"weights": "b" * 64, "kv": "f16", "engine": "scripted 2", "lora": "z"}
    why = explain_mismatch(entry, other)
    assert "engine (scripted 1 there, scripted 2 here)" in why
    assert "lora (none there, z here)" in why
    assert "weights (aaaaaaaaaaaa... there, bbbbbbbbbbbb... here)" in why
    assert "kv" not in why
