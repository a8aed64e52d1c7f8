"""The bundled model `codes`: its network, its rendered images, its training and its export."""
