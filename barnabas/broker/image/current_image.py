"""CurrentImage: the published metadata image, its followers and its subscribers."""

from __future__ import annotations

from collections.abc import Callable

from barnabas.broker.image.image import MetadataDelta, MetadataImage
from barnabas.work import Work

ImageFollower = Callable[[MetadataImage, MetadataDelta], Work]  # takes the next image
# takes the previous image, the new one and their difference
ImageSubscriber = Callable[[MetadataImage, MetadataImage, MetadataDelta], None]


class CurrentImage:
    """An image is published in one turn of the loop: no answer leaves between the first subscriber and the last."""

    def __init__(self) -> None:
        self.image = MetadataImage()  # its offset is -1 before the first publication
        self._followers: list[ImageFollower] = []
        self._subscribers: list[ImageSubscriber] = []

    def follow(self, *followers: ImageFollower) -> None:
        """They apply the next image in slices before it is published, in the order of their registration."""
        self._followers += followers

    def subscribe(self, *subscribers: ImageSubscriber) -> None:
        """They are notified of each published image, in the order of their registration."""
        self._subscribers += subscribers

    def prepare(self, image: MetadataImage, delta: MetadataDelta) -> Work:
        for follower in self._followers:
            yield from follower(image, delta)

    def publish(self, image: MetadataImage, delta: MetadataDelta) -> None:
        former, self.image = self.image, image
        for subscriber in self._subscribers:
            subscriber(former, image, delta)
