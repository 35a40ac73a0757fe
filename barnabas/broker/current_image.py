"""CurrentImage: the metadata image that this node has published, and the parts that follow it.

Driven by: the metadata loader, with each new image. Emits: calls of the followers and subscribers, in the order of their lists.

A follower takes long: it follows the next image in slices, before that image is published. A subscriber is told once it is.
Invariant: an image is published in one turn of the loop: no answer leaves between the first subscriber and the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from barnabas.broker.metadata.image import MetadataDelta, MetadataImage
from barnabas.broker.slices import Work

__all__ = ["CurrentImage", "Follower", "Subscriber"]

Follower = Callable[[MetadataImage, MetadataDelta], Work]  # of the next image
Subscriber = Callable[
    [MetadataImage, MetadataImage, MetadataDelta], None
]  # gets the image before, the new one, the difference


class CurrentImage:
    """See the module.

    Attributes:
        image: the published one; of offset -1 before the first.
        followers: prepare the next image, in this order.
        subscribers: are told of each published image, in this order.
    """

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.followers: Sequence[Follower] = ()
        self.subscribers: Sequence[Subscriber] = ()

    def prepare(self, image: MetadataImage, delta: MetadataDelta) -> Work:
        """The followers follow the next image, in slices."""
        for follower in self.followers:
            yield from follower(image, delta)

    def publish(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """The next image becomes the current one."""
        former, self.image = self.image, image
        for subscriber in self.subscribers:
            subscriber(former, image, delta)
