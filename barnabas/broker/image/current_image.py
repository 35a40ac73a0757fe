"""CurrentImage: the metadata image that this node has published, and the parts that follow it.

A follower may take long: it applies the next image in slices, before that image is published. A subscriber is notified after the
publication. Invariant: an image is published in one turn of the loop: no answer leaves between the first subscriber and the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from barnabas.broker.image.image import MetadataDelta, MetadataImage
from barnabas.work import Work

ImageFollower = Callable[[MetadataImage, MetadataDelta], Work]  # takes the next image
ImageSubscriber = Callable[
    [MetadataImage, MetadataImage, MetadataDelta], None
]  # takes the previous image, the new one and their difference


class CurrentImage:
    """The published image with its followers and subscribers.

    Attributes:
        image: the published image; its offset is -1 before the first publication.
        followers: prepare the next image, in this order.
        subscribers: are notified of each published image, in this order.
    """

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.followers: Sequence[ImageFollower] = ()
        self.subscribers: Sequence[ImageSubscriber] = ()

    def prepare(self, image: MetadataImage, delta: MetadataDelta) -> Work:
        """Returns the work of all followers for the next image, in slices."""
        for follower in self.followers:
            yield from follower(image, delta)

    def publish(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Makes the next image current and notifies the subscribers."""
        former, self.image = self.image, image
        for subscriber in self.subscribers:
            subscriber(former, image, delta)
