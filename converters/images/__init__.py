"""Operations on one image: synthesis, validation, decoding, resizing, encoding."""
