"""The images of the product, written without a container daemon: `python3 -m umbra_images --help`."""
