"""What README.md shows is what the code makes of a recorded run."""

import readme


def test_the_readme_shows_what_the_report_says():
    """Picture, table and verdicts are those of the runs in tests/data/demo, to the letter; see tests/readme.py to renew them."""
    text = (readme.ROOT / "README.md").read_text()

    assert readme.with_parts(text, readme.rendered()) == text
