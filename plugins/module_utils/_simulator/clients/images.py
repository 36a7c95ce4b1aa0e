# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What a node knows of a container image by its name alone."""

from __future__ import annotations

import hashlib
import re

from ..hardware.seam import StartProblem

# Registry, path in lower case, tag, digest: what a container runtime takes as a reference.
_PART = r"[a-z0-9]+([._-]+[a-z0-9]+)*"
_NAME = re.compile(rf"(([\w.-]+|\[[0-9a-fA-F:]+\])(:\d+)?/)?{_PART}(/{_PART})*(:\w[\w.-]{{0,127}})?(@\w+:[0-9a-fA-F]{{32,}})?", re.ASCII)


def image_name_problem(image: str) -> StartProblem | None:
    """What the kubelet says of an image that no runtime can look up; the API server takes any text."""
    if _NAME.fullmatch(image):
        return None
    words = f'Failed to apply default image tag "{image}": couldn\'t parse image name "{image}": invalid reference format'
    return StartProblem("InvalidImageName", words)


def image_id(image: str) -> str:
    """A digest that is always the same for an image name; the image's own if it names one."""
    if "@sha256:" in image:
        return image
    repository, colon, tag = image.rpartition(":")
    if not colon or "/" in tag:
        repository = image
    return f"{repository}@sha256:{hashlib.sha256(image.encode()).hexdigest()}"


def image_size(image: str) -> int:
    """A plausible size in bytes, always the same for an image name."""
    return 2_000_000_000 + int(hashlib.sha256(image.encode()).hexdigest()[:8], 16) * 2
