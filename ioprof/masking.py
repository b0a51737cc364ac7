"""Secrets in command lines, URLs and messages are masked before anything is written or printed:
`--token X` becomes `--token ***`.

A run folder is copied, shared and attached to issues, and a job's arguments may hold what opens its
data. Two things tell a secret: the name that it is given by (`--password`, `HF_TOKEN=`,
`?X-Amz-Signature=`), and the shape of the value itself (`hf_...`). Names end in a word of the
tables below: `--max-tokens`, `--token-dropout` and `--key_dim` do not. What is no secret under such
a name is a short number, a common word, a path that exists, or a reference such as `$HF_TOKEN`.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

MASK: Final = "***"

_SECRET_WORDS: Final = ("password", "passwd", "passphrase", "pwd", "secret", "token", "apikey")
"""A name whose last word ends so is that of a secret: `--hub_token`, `PGPASSWORD`, `clientSecret`,
`authtoken`."""
_KEYS: Final = frozenset(
    {
        "access",
        "account",
        "api",
        "app",
        "auth",
        "client",
        "comet",
        "encryption",
        "hmac",
        "license",
        "master",
        "neptune",
        "private",
        "secret",
        "security",
        "service",
        "session",
        "shared",
        "signing",
        "ssh",
        "storage",
        "subscription",
        "wandb",
    }
)
"""Before `key` as the last word: `--wandb-key`, `AZURE_STORAGE_KEY`. Other keys are of
dictionaries: `--image_key jpg`."""
_TOKENS_OF_TEXT: Final = frozenset(
    {
        "additional",
        "begin",
        "bos",
        "class",
        "cls",
        "end",
        "eos",
        "first",
        "generated",
        "image",
        "initializer",
        "instance",
        "last",
        "mask",
        "max",
        "media",
        "min",
        "modifier",
        "new",
        "next",
        "num",
        "pad",
        "per",
        "placeholder",
        "prompt",
        "sep",
        "sot",
        "special",
        "start",
        "stop",
        "text",
        "tool",
        "trigger",
        "unk",
        "vision",
    }
)
"""Before `token` as the last word: words of a tokenizer's vocabulary, as in
`--pad-token '<pad>'`."""
_DOUBTFUL_WORDS: Final = frozenset(
    {
        "auth",
        "authorization",
        "code",
        "cookie",
        "credential",
        "credentials",
        "key",
        "pass",
        "policy",
        "sas",
        "sig",
        "signature",
        "token",
    }
)
"""Last words of names that may hold a secret: it is one if the value looks random. Signed URLs have
such names."""

_RANDOM: Final = re.compile(r"(?=[A-Za-z]{0,15}[0-9])(?=[0-9]{0,15}[A-Za-z])[A-Za-z0-9+=%]{16}")
"""Letters and digits in one piece, longer than words and dates are. Pieces of names are separated:
`imagenet-train-256`."""
_SHAPES: Final = (
    # OpenAI, Anthropic, Stripe: sk-proj-..., sk_live_...
    r"(?:sk|rk|pk)[-_](?:[a-z0-9]{1,10}[-_]){0,4}[A-Za-z0-9]{20}[\w-]*",
    r"hf_[A-Za-z0-9]{20,}",  # Hugging Face
    r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}",  # GitHub, GitLab
    r"(?:AKIA|ASIA)[A-Z0-9]{16}",  # AWS: the identifier of an access key
    r"AIza[\w-]{35}|ya29\.[\w-]{20,}",  # Google: API keys, OAuth
    r"xox[a-z]-[A-Za-z0-9-]{10,}",  # Slack
    # NVIDIA, Docker, PyPI, npm, Replicate, Weights & Biases
    r"(?:nvapi|dckr_pat|pypi|npm|r8|wandb_v1)[-_][\w-]{20,}",
    r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?",  # a JSON web token: base64 of {"
)
_SHAPE: Final = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_SHAPES)})")
_PRIVATE_KEY: Final = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END|\Z)", re.DOTALL)

_VALUE: Final = r"""\\?"[^"]*"|\\?'[^']*'|[^\s"'&;]+"""
"""In quotes, or up to white space, `&` or `;`."""
_PAIR: Final = re.compile(
    rf"""(?<![\w.-])(?P<name>[\w.-]+)(?P<between>\\?["']?\s*[=:]\s*)(?P<value>{_VALUE})"""
)
_OPTION: Final = re.compile(
    rf"(?<!\S)(?P<name>--?[A-Za-z][\w.-]*)(?P<between>\s+)(?P<value>{_VALUE})"
)
_USER_INFO: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,20}://[^/\s:@'\"]*):([^/\s'\"]+)@")
_USER_ALONE: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,20}://)([^/\s:@'\"]+)(:)?@")
_HEADER: Final = re.compile(
    r"(?i)(\bauthorization\\?[\"']?\s*[:=]\s*[\"']?(?:(?:basic|bearer|digest|token)\s+)?+|\bbearer\s+)([^\s\"',;]{6,})"
)
_CURL_USER: Final = re.compile(
    r"(\bcurl\b.{0,2000}?\s(?:-u|--user|-U|--proxy-user)[\s=]+[\"']?[^\s:\"']+:)[^\s\"']+",
    re.DOTALL,
)
_NAMED: Final = re.compile(
    r"(?P<name>[+~-]*[A-Za-z_][\w.@/-]*)(?P<between>=)(?P<value>.*)", re.DOTALL
)
"""One argument, all of it: `--password=X`, `HF_TOKEN=X`, `+hub.token=X`."""

SUSPICION: Final = (
    r"(?i)(?:pass|passwd|password|passphrase|pwd|secret|token|key|auth|authorization|code|cookie|credentials?|policy|sas|sig|signature)"
    r"[^A-Za-z:=]*[:=\s]|://[^/]*@|bearer\s|private"
    r" key|\b(?:sk|rk|pk)[-_]|hf_|gh[pousr]_|github_pat_|glpat-"
    r"|curl\b|akia|asia|aiza|ya29|xox[a-z]-|nvapi|dckr_pat|pypi-|npm_|r8_|wandb_|eyj"
)
"""A regular expression, also of Rust's syntax, that finds all texts which `masked_text` changes,
and few others."""

_COMMON: Final = frozenset(
    {
        "auto",
        "default",
        "disabled",
        "enabled",
        "env",
        "environ",
        "false",
        "no",
        "none",
        "null",
        "off",
        "on",
        "prompt",
        "required",
        "stdin",
        "true",
        "yes",
    }
)
_NUMBER: Final = re.compile(r"[+-]?(?:\d{1,5}|\d*\.\d{1,6}|\d\.?\d*e[+-]?\d{1,3})")
"""Such as `--pass 2` or `--secret 0.1`: a count or a rate."""
_REFERENCE: Final = re.compile(r"\$\{?[A-Z_][A-Z0-9_]*\}?|\$\([^)]*\)|\$\{\{.*\}\}")
"""What a shell or a template replaces later."""


def masked_command(words: Sequence[str]) -> list[str]:
    """The words of a command line, with secrets masked."""
    masked = list[str]()
    is_secret: Callable[[str], bool] = _never
    for word in words:
        follows, is_secret = is_secret, _never
        if follows(word) and not word.startswith("-"):
            masked.append(MASK)
            continue
        masked.append(_masked_word(word, masked))
        if re.fullmatch(r"--?[A-Za-z][\w.-]*", word):
            is_secret = _judge(word)
    return masked


def masked_text(text: str) -> str:
    """A text, such as a URL, a message or a script in one argument, with secrets masked."""
    text = _PRIVATE_KEY.sub(rf"\1{MASK}\2", text)
    text = _USER_INFO.sub(rf"\1:{MASK}@", text)
    text = _USER_ALONE.sub(
        lambda found: (
            found[0] if not _RANDOM.search(found[2]) else f"{found[1]}{MASK}{found[3] or ''}@"
        ),
        text,
    )
    text = _CURL_USER.sub(rf"\1{MASK}", text)
    text = _HEADER.sub(lambda found: found[0] if _is_ordinary(found[2]) else found[1] + MASK, text)
    text = _PAIR.sub(_masked_pair, text)
    text = _OPTION.sub(_masked_pair, text)
    return _SHAPE.sub(MASK, text)


def is_masked(words: Sequence[str]) -> bool:
    """Whether something was masked in these words, so that they are no command to run."""
    return any(MASK in word for word in words)


def _masked_word(word: str, before: Sequence[str]) -> str:
    is_script = bool(before) and re.fullmatch(r"-[a-z]*c", before[-1]) is not None
    named = None if is_script else _NAMED.fullmatch(word)
    if named and _judge(named["name"])(named["value"]):
        return f"{named['name']}={MASK}"
    if named and _NAMED.fullmatch(named["value"]):  # --env=HF_TOKEN=X
        return f"{named['name']}={_masked_word(named['value'], ())}"
    if (
        before
        and before[-1] in ("-u", "--user", "-U", "--proxy-user")
        and ":" in word
        and any("curl" in each for each in before)
    ):
        return f"{word.partition(':')[0]}:{MASK}"
    return masked_text(word)


def _masked_pair(found: re.Match[str]) -> str:
    value = found["value"]
    quote = re.match(r"\\?[\"']", value)
    inside = value[len(quote[0]) : -1].removesuffix("\\") if quote else value
    if not _judge(found["name"])(inside):
        # {'a': 'TOKEN=X'}
        again = _PAIR.sub(_masked_pair, value) if "=" in value or ":" in value else value
        return f"{found['name']}{found['between']}{again}"
    marks = (quote[0], quote[0]) if quote else ("", "")
    return f"{found['name']}{found['between']}{marks[0]}{MASK}{marks[1]}"


def _judge(name: str) -> Callable[[str], bool]:
    """What decides whether a value with that name is a secret."""
    words = [
        word.lower()
        for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name.rpartition("/")[2])
    ] or [""]
    last, previous = words[-1], words[-2] if len(words) > 1 else ""
    if last == "key" and previous in _KEYS:
        return _is_secret
    if (
        last.endswith(_SECRET_WORDS)
        and not (last == "token" and previous in _TOKENS_OF_TEXT)
        and name not in ("PWD", "OLDPWD")
    ):
        return _is_secret
    return _is_random if last in _DOUBTFUL_WORDS else _never


def _never(_: str) -> bool:
    return False


def _is_secret(value: str) -> bool:
    return not _is_ordinary(value)


def _is_random(value: str) -> bool:
    return _RANDOM.search(value) is not None and not _is_ordinary(value)


def _is_ordinary(value: str) -> bool:
    if (
        value in ("", MASK)
        or value.lower() in _COMMON
        or _NUMBER.fullmatch(value)
        or _REFERENCE.fullmatch(value)
    ):
        return True
    try:
        return Path(value).exists()
    except (OSError, ValueError):  # too long, or with a zero byte
        return False
