"""The server's side of a connection between nodes, for servers that a test writes itself."""

from __future__ import annotations

import asyncio

from barnabas.protocol.messages.metadata import ApiVersion, ApiVersionsResponse, MetadataResponse
from barnabas.protocol.schema import encode


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


async def negotiate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The server's side of the first exchange: it speaks Metadata 0 and ApiVersions 4."""
    asked = await read_frame(reader)
    keys = [ApiVersion(api_key=3, min_version=0, max_version=0), ApiVersion(api_key=18, max_version=4)]
    body = asked[4:8] + encode(ApiVersionsResponse(api_keys=keys), 4)
    writer.write(len(body).to_bytes(4, "big") + body)


async def answer_metadata(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Answers a Metadata request of version 0; returns it."""
    asked = await read_frame(reader)
    body = asked[4:8] + encode(MetadataResponse(), 0)
    writer.write(len(body).to_bytes(4, "big") + body)
    return asked
