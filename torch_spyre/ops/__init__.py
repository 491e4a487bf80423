"""Operations: what runs on the card, and what falls back to the CPU."""
