"""The catalogue: what each finding and each sentence of a verdict says, by its code."""
