"""Keys, signatures, marks; what a signed store takes and what it does not."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from people import as_user
from place import BUILD, PROFILE, Place

pytest.importorskip("cryptography")

from cachehome.errors import ConfigError, IntegrityError, Untrusted
from cachehome.settings import Settings
from cachehome.store.manifest import decode, encode
from cachehome.store.signing import Keys, generate, seal, unseal


@pytest.fixture
def keys(tmp_path: Path) -> Any:
    """`keys("alice")`: settings of a writer who signs as alice; `keys("alice", "bob", sign=False)`: of a reader."""

    def of(*names: str, sign: bool = True) -> dict[str, Any]:
        for name in names:
            if not (tmp_path / name).exists():
                generate(str(tmp_path / name))
        public = tuple(str(tmp_path / name / "key.pub") for name in names)
        return {"trusted_keys": public} | ({"signing_key": str(tmp_path / names[0] / "key")} if sign else {})

    return of


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path).make()


# -- keys --------------------------------------------------------------------------------------------------------------


def test_a_pair_of_keys(tmp_path: Path) -> None:
    private, public, name = generate(str(tmp_path / "keys"))
    assert stat.S_IMODE(os.stat(private).st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    with pytest.raises(FileExistsError):
        generate(str(tmp_path / "keys"))
    writer, reader = Keys.load(Settings(signing_key=private)), Keys.load(Settings(trusted_keys=(public,)))
    assert writer is not None
    assert reader is not None
    assert writer.ids == reader.ids == (name,)
    assert reader.sign is None
    assert writer.sign is not None
    signature = writer.sign(b"text")
    reader.verify(b"text", signature)
    for data, found in (
        (b"other", signature),
        (b"text", None),
        (b"text", ""),
        (b"text", signature[:-8] + "AAAAAA=="),
    ):
        with pytest.raises(Untrusted):
            reader.verify(data, found)
    for odd in (
        "x",
        "ed25519",
        "ed25519:",
        f"ed25519:{name}:",
        f"ed25519:{name}:%%%",
        f"rsa:{name}:AAAA",
        7,
        {},
        [],
    ):
        with pytest.raises(Untrusted):
            reader.verify(b"text", odd)  # type: ignore[arg-type]


def test_no_keys_no_signatures() -> None:
    assert Keys.load(Settings()) is None


def test_several_keys_in_a_file_and_in_files(tmp_path: Path) -> None:
    pairs = [generate(str(tmp_path / str(number))) for number in range(3)]
    both = tmp_path / "both"
    both.write_text("# the build farm\n" + "".join(Path(public).read_text() for _, public, _ in pairs[:2]))
    keys = Keys.load(Settings(trusted_keys=(str(both), pairs[2][1])))
    assert keys is not None
    assert set(keys.ids) == {name for _, _, name in pairs}


def test_a_private_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    private, _, _ = generate(str(tmp_path / "keys"))
    for mode in (0o640, 0o604, 0o620, 0o602, 0o644):
        os.chmod(private, mode)
        with pytest.raises(ConfigError, match="chmod 600"):
            Keys.load(Settings(signing_key=private))
    os.chmod(private, 0o400)
    assert Keys.load(Settings(signing_key=private))


def test_a_secret_that_belongs_to_root_and_to_my_group(tmp_path: Path) -> None:
    # As Kubernetes mounts it: root:fsGroup, mode 0440, through a link.
    private, _, _ = generate(str(tmp_path / "keys"))
    keys = Path("/tmp") / f"cachehome-test-{os.getpid()}"
    keys.mkdir(mode=0o755)
    try:
        (keys / "real").write_bytes(Path(private).read_bytes())
        (keys / "key").symlink_to("real")
        if os.geteuid() == 0:
            os.chown(keys / "real", 0, 777)
        (keys / "real").chmod(0o440)
        settings = Settings(signing_key=str(keys / "key"))
        assert as_user(12345, lambda: len(Keys.load(settings).ids), groups=[777]) == 1
        (keys / "real").chmod(0o444)
        with pytest.raises(ConfigError):
            as_user(12345, lambda: Keys.load(settings), groups=[777])
    finally:
        for path in keys.iterdir():
            path.unlink()
        keys.rmdir()


def test_files_that_are_no_keys(tmp_path: Path) -> None:
    private, public, _ = generate(str(tmp_path / "keys"))
    empty, garbage = tmp_path / "empty", tmp_path / "garbage"
    empty.touch(mode=0o600)
    garbage.write_bytes(b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")
    garbage.chmod(0o600)
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path in (str(empty), str(garbage), str(tmp_path / "absent"), str(tmp_path), str(tmp_path / "fifo")):
        for settings in (Settings(signing_key=path), Settings(trusted_keys=(path,))):
            with pytest.raises(ConfigError) as caught:
                Keys.load(settings)
            assert path in str(caught.value)
            assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"name the \.pub file"):
        Keys.load(Settings(trusted_keys=(private,)))
    with pytest.raises(ConfigError):
        Keys.load(Settings(signing_key=public))
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    other = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    empty.write_bytes(other)
    with pytest.raises(ConfigError, match="another kind"):
        Keys.load(Settings(signing_key=str(empty)))
    Path(public).chmod(0o646)
    with pytest.raises(ConfigError, match="chmod o-w"):
        Keys.load(Settings(trusted_keys=(public,)))


def test_keygen(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "cachehome", "keygen", *arguments]
        return subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)

    done = run("keys")
    assert done.returncode == 0
    variables = dict(line.split("=", 1) for line in done.stdout.splitlines())
    loaded = Settings.load({**variables, "CACHEHOME_CONFIG": os.devnull})
    keys = Keys.load(loaded)
    assert keys is not None
    assert len(keys.ids) == 1
    again = run("keys")
    assert again.returncode == 1
    assert "exists already" in again.stderr


# -- marks -------------------------------------------------------------------------------------------------------------


def test_marks_are_bound_to_their_name(tmp_path: Path) -> None:
    private, public, _ = generate(str(tmp_path))
    writer, reader = Keys.load(Settings(signing_key=private)), Keys.load(Settings(trusted_keys=(public,)))
    assert writer is not None
    assert reader is not None
    sealed = seal("b/denied/x", b'{"a": 1}', writer.sign)
    assert unseal("b/denied/x", sealed, reader.verify) == unseal("b/denied/x", sealed) == b'{"a": 1}'
    assert unseal("b/denied/x", seal("b/denied/x", b"\n\n")) == b"\n\n"
    with pytest.raises(Untrusted):
        unseal("b/denied/x", seal("b/denied/x", b"data"), reader.verify)
    for name in ("b/denied/y", "c/denied/x", "b/pins/x", ""):
        with pytest.raises(IntegrityError):
            unseal(name, sealed, reader.verify)
    moved = sealed.replace(b'"b/denied/x"', b'"b/denied/y"')
    with pytest.raises(Untrusted):
        unseal("b/denied/y", moved, reader.verify)
    for broken in (
        b"",
        b"\n",
        sealed[:-1],
        sealed + b"x",
        b"{}\nx",
        b"[]\nx",
        b"null\n",
        sealed[1:],
        b"x" * 100_000,
    ):
        with pytest.raises((IntegrityError, Untrusted)):
            unseal("b/denied/x", broken, reader.verify)
        with pytest.raises(IntegrityError):
            unseal("b/denied/x", broken)


# -- a signed store ----------------------------------------------------------------------------------------------------


def test_readers_take_what_a_trusted_key_signed(place: Place, keys: Any) -> None:
    assert place.publish("a", **keys("alice")).outcome == "hit"
    for reader in (keys("alice", sign=False), keys("bob", "alice", sign=False), {}):
        record, names = place.restore(**reader)
        assert (record.outcome, names) == ("hit", {"a"})
    record, names = place.restore(**keys("bob", sign=False))
    assert (record.outcome, record.reason, names) == ("rejected", "unknown_key", set())
    assert "not one of trusted_keys" in record.details["message"]


def test_unsigned_is_absent_and_the_older_trusted_one_is_used(place: Place, keys: Any) -> None:
    place.publish("a", **keys("alice"))
    place.publish("b")  # takes over a, and signs nothing
    record, names = place.restore(**keys("alice", sign=False))
    assert (record.outcome, record.generation, names) == ("hit", 1, {"a"})
    assert [found["reason"] for found in record.details["rejected"]] == ["unsigned"]
    assert place.restore()[1] == {"a", "b"}


def test_a_signer_builds_on_what_it_trusts_and_above_the_highest(place: Place, keys: Any) -> None:
    place.publish("a", **keys("alice"))
    place.publish("evil")
    place.publish("worse", **keys("mallory"))
    record = place.publish("c", **keys("alice"))
    assert (record.outcome, record.generation) == ("hit", 4)
    assert place.restore(**keys("alice", sign=False))[1] == {"a", "c"}  # nothing of others was signed anew
    # Who trusts both writers builds on both.
    assert place.publish("d", **keys("alice", "mallory")).generation == 5
    assert place.restore(**keys("alice", sign=False))[1] == {"a", "c", "d"}


def test_a_signer_never_signs_an_unsigned_base(place: Place, keys: Any) -> None:
    place.publish("evil")
    place.publish("a", **keys("alice"))
    assert place.restore(**keys("alice", sign=False))[1] == {"a"}
    # Nor that of another profile, which a new one may start from.
    other = place.settings.replace(profile_fallback="build", **keys("alice", sign=False))
    store = place.store(**keys("alice", sign=False))
    assert store.newest(BUILD, PROFILE) is not None
    assert other.trusted_keys


def test_strangers_with_high_numbers_do_not_end_the_line(place: Place, keys: Any) -> None:
    place.publish("a", **keys("alice"))
    for number in ("00000099", "9" * 15, "9" * 19, "9" * 200):
        (place.generations / number).write_bytes(b"junk")
    record = place.publish("b", **keys("alice"))
    assert record.outcome == "hit"
    assert place.restore(**keys("alice", sign=False))[1] == {"a", "b"}


def test_a_winner_that_is_a_stranger_is_passed_by(
    place: Place, keys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody takes the next number between our listing and our commit."""
    from cachehome.store.posix import PosixBackend

    place.publish("a", **keys("alice"))
    real, raced = PosixBackend.put_new, []

    def race(self: PosixBackend, name: str, data: bytes) -> bool:
        if "/generations/" in name and not raced:
            raced.append(name)
            real(self, name, b"junk of a stranger")
        return real(self, name, data)

    monkeypatch.setattr(PosixBackend, "put_new", race)
    record = place.publish("b", **keys("alice"))
    assert (record.outcome, record.generation, len(raced)) == ("hit", 3, 1)


def test_a_line_that_was_shortened_and_filled_up_with_junk(place: Place, keys: Any, tmp_path: Path) -> None:
    reader = keys("alice", sign=False)
    place.publish("a", **keys("alice"))
    place.publish("b", **keys("alice"))
    assert place.restore(**reader)[1] == {"a", "b"}
    (place.generations / "00000002").unlink()
    (place.generations / "00000003").write_bytes(b"junk")
    record, names = place.restore(**reader)
    assert (record.outcome, names) == ("rejected", set())
    assert "line_shortened" in {found["reason"] for found in record.details["rejected"]}
    # A node that has not seen the second one can't know; the next publish heals the line for everybody.
    fresh = {"enabled": str(tmp_path / "another node")}
    assert place.restore(**reader, **fresh)[1] == {"a"}
    assert place.publish("c", **keys("alice"), **fresh).generation == 4
    assert place.restore(**reader)[1] == {"a", "c"}


def test_a_reader_with_keys_and_no_key_of_its_own_does_not_publish(place: Place, keys: Any) -> None:
    record = place.publish("a", **keys("alice", sign=False))
    assert (record.outcome, record.reason) == ("disabled", "no_signing_key")
    assert not place.generations.exists()


def replays(place: Place) -> dict[str, Any]:
    """A signed generation 1, shown again elsewhere: how to do it."""
    first = place.generations / "00000001"
    signed = first.read_bytes()
    header, _, payload = signed.partition(b"\n")
    manifest = decode(signed, "x")

    def other(**changes: Any) -> bytes:

        return header + b"\n" + encode(manifest._replace(**changes)).partition(b"\n")[2]

    return {
        "another number": signed,
        "another number, payload changed": other(number=2),
        "another build": other(build="f" * 64, number=2),
        "another profile": other(profile="other", number=2),
        "another line": other(line="0" * 32, number=2),
        "a signature of something else": header.replace(b'"sha256":"', b'"sha256":"0', 1) + b"\n" + payload,
        "header with a second sha256": header[:-1] + b',"sha256":"' + b"0" * 64 + b'"}\n' + payload,
        "header with blanks": header.replace(b":", b": ") + b"\n" + payload,
        "signature cut": header[:-4] + b'"}\n' + payload,
        "no signature": encode(manifest),
    }


def test_no_replay(place: Place, keys: Any) -> None:
    place.publish("a", **keys("alice"))
    cases = replays(place)
    for what, data in cases.items():
        path = place.generations / "00000002"
        path.write_bytes(data)
        path.chmod(0o600)
        record, names = place.restore(**keys("alice", sign=False))
        assert (record.generation, names) == (1, {"a"}), what
        assert len(record.details["rejected"]) == 1, what
    (place.generations / "00000002").unlink()
    # The whole line under another build or profile.
    for parts in (("x" * 64, PROFILE), (BUILD, "other")):
        target = place.root / "cachehome-v1" / parts[0] / "profiles" / parts[1] / "generations"
        target.mkdir(parents=True, mode=0o700)
        (target / "00000001").write_bytes((place.generations / "00000001").read_bytes())
        with pytest.raises(IntegrityError, match="belongs elsewhere"):
            place.store(**keys("alice", sign=False)).read(*parts, 1)


def test_a_signed_manifest_does_not_vouch_for_other_packs(place: Place, keys: Any) -> None:
    place.publish("a", **keys("alice"))
    (pack,) = place.packs.iterdir()
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    record, names = place.restore(**keys("alice", sign=False))
    assert (record.outcome, record.reason, names) == ("rejected", "pack_damaged", set())


def test_without_the_library_the_extra_is_named(
    place: Place, keys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = keys("alice", sign=False)
    for name in [*sys.modules]:
        if name.startswith("cryptography"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ImportError, match=r"cachehome\[sign\]"):
        place.restore(**settings)
