"""The C sources of ioprof: the capture library, the writer of spans, the clients of the probe; and
what generates parts of them.
"""
