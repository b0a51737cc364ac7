"""What ioprof can and cannot see on this machine, found by trying, and what would let it see more."""

from ioprof.doctor.examination import CHECKS, examine
from ioprof.doctor.finding import STATES, Finding, Surroundings

__all__ = ["CHECKS", "STATES", "Finding", "Surroundings", "examine"]
