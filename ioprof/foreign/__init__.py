"""Records of other programs' files, as bytes: how TFRecord, RecordIO and LMDB values frame an image
and its label.

A leaf: converters list such records, and loaders read them, by the same functions. All of it is
untrusted input: lengths are checked before they are used, nothing is unpickled, and what is wrong
raises `DatasetError` in one line.
"""
