"""The sources of a conversion: what each kind contains, as a `Source` of images in a fixed order
with labelled classes.
"""
