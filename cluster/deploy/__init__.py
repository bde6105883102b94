"""What it takes to run a cluster for Umbel: manifests for Kubernetes, an image, and a check of the manifests."""
