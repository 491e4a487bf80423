"""How buffers lie on the card: the device IR, layouts, and host strides as device coordinates."""
