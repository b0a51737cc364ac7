"""README.md shows the current output for recorded runs."""

import readme


def test_the_readme_shows_what_the_report_says():
    """Picture, table and verdicts equal those of the runs in tests/data/demo exactly;
    tests/readme.py updates them."""
    text = (readme.ROOT / "README.md").read_text()

    assert readme.with_parts(text, readme.rendered()) == text
