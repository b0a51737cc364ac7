"""Conversion, generation and replication of datasets as resumable jobs: workers, journal,
destination, parts, verification.
"""
