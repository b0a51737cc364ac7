"""What threads did, and who woke whom (DESIGN 8).

wakers.py    the threads that worked while others were blocked, back along the calls that woke
             them
"""
