"""Checks what ioprof can measure on this machine, by trying it, and what would enable the rest."""

from ioprof.doctor.examination import CHECKS, examine
from ioprof.doctor.finding import STATES, Finding, Surroundings

__all__ = ["CHECKS", "STATES", "Finding", "Surroundings", "examine"]
