"""From functions of KTIR to tile programs of the card."""
