"""The bundled model `codes`: its network, its rendered pictures, its training and its export."""
