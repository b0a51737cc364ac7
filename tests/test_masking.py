"""Secrets in arguments, URLs and messages are in nothing that ioprof writes or prints; ordinary
command lines are as they were."""

import gzip
import json
import re
import shlex
import string
import subprocess
import sys
import zlib
from base64 import b64decode
from binascii import Error as NoBase64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import ioprof
from preload import needs_library
from repository import PROGRAMS

from ioprof.errors import CommandError
from ioprof.format.run_record import RunRecord
from ioprof.format.trace import Trace
from ioprof.interchange.imported import Imported, to_trace
from ioprof.jobs.recorded_script import _recorded_command
from ioprof.masking import MASK, SUSPICION, is_masked, masked_command, masked_text

Words = list[str]

_LETTERS: Final = string.ascii_letters + string.digits
_FIRST: Final = st.text(_LETTERS, min_size=1, max_size=1)
ANY: Final = st.builds(
    lambda first, rest: f"{first}{rest}Z",
    _FIRST,
    st.text(_LETTERS + "!#%^()-_+=[]{}|:,./<>?~@", min_size=10, max_size=40),
)
"""What somebody may choose as a password; quotes are left out, since the tests put it into
scripts."""
WORD: Final = st.text(_LETTERS, min_size=20, max_size=40)
RANDOM: Final = st.lists(st.text(_LETTERS, min_size=2, max_size=2), min_size=8, max_size=16).map(
    lambda pairs: "7x".join(["q1", *pairs])
)
"""As a program makes them: letters and digits in one piece."""

OPTIONS: Final = (
    "--token",
    "--hub_token",
    "--password",
    "--api-key",
    "--wandb-key",
    "-password",
    "--storage.secret_key",
    "--clientSecret",
)
VARIABLES: Final = (
    "HF_TOKEN",
    "WANDB_API_KEY",
    "PGPASSWORD",
    "AWS_SECRET_ACCESS_KEY",
    "+hub.token",
    "++logger.api_key",
    "MYSQL_PWD",
)
NAMED: Final[tuple[Callable[[str, str, str], Words], ...]] = (
    lambda option, _, secret: ["train.py", option, secret, "--epochs", "3"],
    lambda option, _, secret: ["train.py", f"{option}={secret}"],
    lambda _, variable, secret: ["env", f"{variable}={secret}", "train.py"],
    lambda _, variable, secret: ["docker", "run", f"--env={variable}={secret}"],
    lambda _, variable, secret: [
        "srun",
        f"--export=ALL,{variable}={secret.replace(',', '')},FOO=1",
    ],
    lambda _, variable, secret: [
        "bash",
        "-c",
        f"cd /data && {variable}={shlex.quote(secret)} python train.py",
    ],
    lambda option, _, secret: [
        "bash",
        "-lc",
        f"python train.py {option} {shlex.quote(secret)} --epochs 3",
    ],
    lambda option, _, secret: ["sh", "-c", f'python train.py {option}="{secret}"; echo done'],
    lambda option, _, secret: ["train.py", json.dumps({option.strip("-"): secret, "lr": 0.1})],
    lambda *given: ["python", "-c", f'login(token="{given[2]}", x=1)'],
    lambda *given: ["train.py", f"postgresql://me:{quote(given[2], safe='')}@host:5432/db"],
    lambda *given: [
        "train.py",
        f"https://host/a.tar?part=1&access_token={quote(given[2], safe='')}&x=2",
    ],
    lambda *given: [
        "train.py",
        f"pipe:curl -s -u me:{quote(given[2], safe='')} https://host/a.tar",
    ],
    lambda *given: ["curl", "--user", f"me:{given[2]}", "https://host/a.tar"],
)
"""Command lines with a secret that is told by a name."""
SHAPED: Final[tuple[Callable[[str], str], ...]] = (
    lambda word: f"sk-{word}",
    lambda word: f"sk-proj-{word}",
    lambda word: f"hf_{word}",
    lambda word: f"ghp_{word}",
    lambda word: f"github_pat_{word}",
    lambda word: f"AKIA{word[:16].upper()}",
    lambda word: f"xoxb-{word}",
    lambda word: f"eyJ{word}.eyJ{word}.{word}",
)
"""Secrets that are told by their shape, wherever they stand."""


def leaks(secret: str, text: str) -> bool:
    """Whether a piece of the secret is in the text."""
    return any(secret[start : start + 8] in text for start in range(len(secret) - 7))


@given(st.sampled_from(NAMED), st.sampled_from(OPTIONS), st.sampled_from(VARIABLES), ANY)
def test_a_secret_with_a_name_is_masked(form, option, variable, secret):
    """In any of the forms in which command lines have them; masked again, the command stays as it
    is."""
    words = form(option, variable, secret)
    masked = masked_command(words)
    assert not leaks(secret, " ".join(masked))
    assert not leaks(quote(secret, safe=""), " ".join(masked))
    assert is_masked(masked)
    assert masked == masked_command(masked)


@given(
    st.sampled_from(SHAPED),
    WORD,
    st.sampled_from(
        ["{}", "--hub={}", "https://host/{}/a", "https://{}@github.com/a", "run('{}')", "{},b"]
    ),
)
def test_a_secret_with_a_shape_is_masked(shape, word, place):
    """Wherever it stands."""
    secret = shape(word)
    masked = masked_command(["train.py", place.format(secret)])
    assert not leaks(secret[-16:], " ".join(masked))
    assert masked == masked_command(masked)


@given(RANDOM)
def test_a_signed_url_is_masked(signature):
    """The parts that open the data; what is no secret in it stays readable."""
    url = (
        f"https://bucket.s3.amazonaws.com/a.tar?X-Amz-Date=20261128T000000Z&X-Amz-Signature={signature}&X-Amz-Expires=3600"
        f"&sig={signature}%3D&Key-Pair-Id=1&X-Amz-Security-Token={signature}"
    )
    assert not leaks(signature, masked_text(url))
    assert masked_text(url).startswith(
        "https://bucket.s3.amazonaws.com/a.tar?X-Amz-Date=20261128T000000Z&X-Amz-Signature=***&"
    )
    header = f'pipe:curl -H "Authorization: Bearer {signature}" https://host/a.tar'
    assert f'pipe:curl -H "Authorization: Bearer {MASK}" https://host/a.tar' == masked_text(header)


@given(
    st.one_of(
        st.text(max_size=60),
        st.builds(
            lambda form, secret: " ".join(form("--token", "A_KEY", secret)),
            st.sampled_from(NAMED),
            ANY,
        ),
    )
)
def test_what_is_masked_is_suspicious(text):
    """Of many paths only suspicious ones are looked at; Rust's and Python's expressions find the
    same."""
    if masked_text(text) != text:
        assert re.search(SUSPICION, text)
        assert pl.Series([text]).str.contains(SUSPICION).item()


@given(st.text("a=:-./ '\"", max_size=3_000))
def test_long_arguments_take_no_time(text):
    """Nor texts that are much alike; the test would not end."""
    masked_text(text * 30)


ORDINARY: Final = (
    (Path(__file__).parent / "data" / "ordinary_commands.txt").read_text().splitlines()
)
"""Of torchvision, timm, transformers, diffusers, DeepSpeed, Megatron-LM, fairseq, Composer,
torchtune, nanoGPT, YOLO and others."""


@pytest.mark.parametrize("line", ORDINARY)
def test_ordinary_command_lines_are_not_changed(line):
    """Those of well-known trainers, and options whose names only look like those of secrets."""
    words = shlex.split(line)
    assert words == masked_command(words)


def test_a_path_that_exists_is_no_secret(tmp_path):
    """Tokens are often given by the file that they are in."""
    (tmp_path / "token").touch()
    words = ["train.py", "--token", str(tmp_path / "token"), f"--password={tmp_path}"]
    assert words == masked_command(words)
    assert ["train.py", "--token", MASK] == masked_command(
        ["train.py", "--token", str(tmp_path / "other")]
    )


def test_a_private_key_is_masked():
    """The lines between its marks."""
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----"
    assert f"-----BEGIN RSA PRIVATE KEY-----{MASK}-----END RSA PRIVATE KEY-----" == masked_text(key)


# ----------------------------------------------------------------------- everything that is written


def contents(folder: Path) -> Iterator[tuple[str, str]]:
    """The content of each file of a folder: as it is, of tables the texts, and of what is packed in
    a page what was packed."""
    for path in filter(Path.is_file, folder.rglob("*")):
        data = path.read_bytes()
        if path.suffix == ".parquet":
            table = pl.read_parquet(path)
            texts = [
                table[name].cast(pl.String)
                for name in table.columns
                if table[name].dtype in (pl.String, pl.Categorical, pl.Enum)
            ]
            yield path.name, "\n".join(str(text) for column in texts for text in column.unique())
        yield path.name, data.decode("latin-1")
        for packed in re.findall(rb"[A-Za-z0-9+/]{64,}={0,2}", data):
            for unpack in (
                lambda found: found,
                gzip.decompress,
                zlib.decompress,
                lambda found: zlib.decompress(found, -15),
            ):
                try:
                    yield path.name, unpack(b64decode(packed)).decode("latin-1")
                except (OSError, EOFError, zlib.error, NoBase64):
                    continue


def all_forms() -> tuple[list[str], Words]:
    """Secrets of this time, and a command line that has one in each form."""
    alphabet = _LETTERS
    numbers = iter(range(10_000))
    made = list[str]()

    def secret() -> str:
        made.append(
            "".join(
                alphabet[(next(numbers) * 7919 + 31 * len(made)) % len(alphabet)] for _ in range(24)
            )
        )
        return made[-1]

    words = [word for form in NAMED for word in form("--token", "HF_TOKEN", secret())]
    words += [shape(secret()) for shape in SHAPED if shape("x" * 20)[:4] != "AKIA"]
    return made, words


@pytest.mark.job(every=4)
@needs_library
def test_no_secret_is_in_what_a_recording_writes_and_prints(tmp_path):
    """In no file of the run folder, none of the spool that describes the run, no export, and on no
    stream but the job's own."""
    made, words = all_forms()
    signed = tmp_path / f"part.tar?X-Amz-Signature={made[0]}1a"
    signed.write_bytes(bytes(1 << 16))
    finished = ioprof(
        "record",
        "--out",
        "run",
        "--",
        sys.executable,
        PROGRAMS / "reads_a_file.py",
        signed,
        tmp_path / "spool",
        *words,
        cwd=tmp_path,
    )
    assert 0 == finished.code, finished.err
    for name in ("report", "report --json", "report --markdown", "inspect"):
        shown = ioprof(*name.split(), "run", cwd=tmp_path)
        finished = type(finished)(0, finished.out + shown.out, finished.err + shown.err)
    signed.unlink()
    written = [
        *contents(tmp_path / "run"),
        *contents(tmp_path / "spool"),
        *contents(tmp_path / "cache"),
        *exported(tmp_path),
    ]
    assert {"run.json", "summary.json", "report.html", "files.parquet", "job.json"} <= {
        name for name, _ in written
    }
    found = {
        (name, secret)
        for name, text in [*written, ("printed", finished.out + finished.err)]
        for secret in made
        if leaks(secret, text)
    }
    assert set() == found
    run = Trace.load(tmp_path / "run")
    assert MASK in (run.run.command or "")
    assert any(MASK in path for path in run.files["path"])  # the signed URL was read


def exported(folder: Path) -> Iterator[tuple[str, str]]:
    """What `ioprof export` writes of the run in a folder, in formats with its paths and names."""
    for name in ("perfetto", "chrome"):
        path = folder / f"exported.{name}"
        assert 0 == ioprof("export", "run", path, "--to", name, cwd=folder).code
        data = path.read_bytes()
        yield (
            path.name,
            (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("latin-1"),
        )


def test_an_imported_trace_keeps_no_secret():
    """In names and paths; other names stay, and so does what is null."""
    table = pl.DataFrame(
        {
            "start_ns": [1, 2, 3],
            "end_ns": [2, 3, 4],
            "kind": ["user"] * 3,
            "name": ["login(token='abcdefgh1')", "forward", None],
            "path": ["https://me:abcdefgh1@host/a", "/data/a", None],
        }
    )
    trace = to_trace([Imported(Path("trace.json"), table)], "run", "ioprof import", "wall clock")
    assert ["login(token='***')", "forward", None] == trace.spans["name"].cast(pl.String).to_list()
    assert ["https://me:***@host/a", "/data/a"] == trace.files["path"].to_list()


@pytest.mark.job
@needs_library
def test_arguments_can_be_kept(tmp_path):
    """With --keep-arguments."""
    assert (
        0
        == ioprof(
            "record",
            "--keep-arguments",
            "--quiet",
            "--out",
            "run",
            "--",
            "true",
            "--token",
            "abcdefgh1",
            cwd=tmp_path,
        ).code
    )
    assert "true --token abcdefgh1" == Trace.load(tmp_path / "run").run.command


def test_a_masked_command_is_not_run_again():
    """The message says so, and what to type."""
    run = RunRecord(
        name="run", status="complete", started="", command="python train.py --token '***'"
    )
    with pytest.raises(
        CommandError,
        match=r"were masked.*ioprof prove RUN --advice N -- python train.py --token '\*\*\*'",
    ):
        _recorded_command(run)


@pytest.mark.job
def test_a_program_that_is_not_there_is_named_without_its_secrets(tmp_path):
    """A variable before the command is one for a shell."""
    finished = ioprof("record", "--out", "run", "--", "HF_TOKEN=abcdefgh1", "python", cwd=tmp_path)
    assert (127, "") == (finished.code, finished.out)
    assert "HF_TOKEN=***: no such program" in finished.err
    assert "abcdefgh1" not in finished.err


@pytest.mark.job
def test_a_profiled_block_that_fails_keeps_no_secret(tmp_path):
    """Of the message of its error; the error itself is as it was raised."""
    script = (
        "import ioprof\nwith ioprof.profile('run'): raise OSError('401 for"
        " https://host/a?access_token=abcdefgh1')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert "access_token=abcdefgh1" in ended.stderr
    assert (
        "OSError: 401 for https://host/a?access_token=***"
        == Trace.load(tmp_path / "run").run.failures[0].what
    )
    assert not any("abcdefgh1" in text for _, text in contents(tmp_path / "run"))


# ---------------------------------------------------------------------------------- who can read it


@pytest.mark.job(every=4)
@needs_library
def test_a_run_folder_is_the_users_alone(tmp_path):
    """Also the folder of parts; folders above and a folder that is there have the mode that they
    would have, and so has the job."""
    (tmp_path / "mine").mkdir(mode=0o755)
    for out in ("new/run", "mine"):
        finished = ioprof(
            "record", "--quiet", "--out", out, "--", "sh", "-c", "umask", cwd=tmp_path, umask=0o022
        )
        assert (0, "0022\n") == (finished.code, finished.out)
    assert ["0o40755", "0o40700", "0o40755"] == [
        oct((tmp_path / name).stat().st_mode) for name in ("new", "new/run", "mine")
    ]
    from ioprof.recording.run_folder import make_output

    make_output(tmp_path / "new" / "many.parts" / "0-node")
    assert ["0o40700"] * 2 == [
        oct((tmp_path / "new" / name).stat().st_mode)
        for name in ("many.parts", "many.parts/0-node")
    ]
