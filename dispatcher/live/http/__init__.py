"""The HTTP/1.1 server in front of the gateway, on httptools: one protocol object per connection."""
