"""README.md and docs/guide.md show the current output for recorded runs."""

import pytest
import readme
from repository import ROOT


@pytest.mark.parametrize("document", readme.DOCUMENTS)
def test_the_documents_show_what_the_reports_say(document: str) -> None:
    """Answers, report, picture, table and verdicts equal those of the runs in tests/data/shown
    exactly; tests/readme.py updates them."""
    text = (ROOT / document).read_text()

    assert readme.with_parts(text, readme.rendered(document)) == text


def test_the_readme_is_short() -> None:
    """Who reads it to its end is done in minutes."""
    assert 150 >= len((ROOT / "README.md").read_text().splitlines())
