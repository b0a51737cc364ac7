"""The page of a run: its sections, the data of its timeline, and the scripts (`*.js`) that draw it
in a browser.
"""
