package wireguard

import (
	"encoding/binary"

	"golang.zx2c4.com/wireguard/tun"
)

// outboundOnly drops packets that begin TCP connections from the other end. Answers, and what is not TCP, pass: the
// kernel's own connections need them.
type outboundOnly struct{ tun.Device }

// Write implements tun.Device. A packet that is dropped counts as written.
func (o *outboundOnly) Write(bufs [][]byte, offset int) (int, error) {
	pass := bufs[:0:0]
	for _, b := range bufs {
		if len(b) <= offset || !beginsTCP(b[offset:]) {
			pass = append(pass, b)
		}
	}
	if len(pass) == 0 {
		return len(bufs), nil
	}
	if _, err := o.Device.Write(pass, offset); err != nil {
		return 0, err
	}
	return len(bufs), nil
}

const (
	protocolTCP    = 6
	smallestTCP    = 20   // bytes of its header
	flagsOfTCP     = 13   // their place in it
	flagSYN        = 0x02 // without flagACK it begins a connection
	flagACK        = 0x10
	fragmentOffset = 0x1fff // its bits in the header of IPv4, in units of 8 bytes
)

// beginsTCP reports whether a packet begins a TCP connection, or is a fragment by which that could be hidden.
func beginsTCP(p []byte) bool {
	var next byte
	var fragment int // bytes before this one; 0 in the first or the only one
	switch p[0] >> 4 {
	case 4:
		head := int(p[0]&15) * 4
		if len(p) < 20 || head < 20 || len(p) < head {
			return true // the kernel refuses it too
		}
		next, fragment, p = p[9], int(binary.BigEndian.Uint16(p[6:])&fragmentOffset)*8, p[head:]
	case 6:
		var ok bool
		if next, fragment, p, ok = skipExtensions(p); !ok {
			return true
		}
	default:
		return true
	}
	if next != protocolTCP {
		return false
	}
	if fragment > 0 {
		return fragment < smallestTCP // it would overwrite the flags of the first one
	}
	return len(p) < smallestTCP || p[flagsOfTCP]&(flagSYN|flagACK) == flagSYN
}

// skipExtensions returns what follows the headers of an IPv6 packet.
func skipExtensions(p []byte) (next byte, fragment int, rest []byte, ok bool) {
	if len(p) < 40 {
		return 0, 0, nil, false
	}
	next, rest = p[6], p[40:]
	for {
		length := 8
		switch next {
		case 0, 43, 60, 135: // hop by hop, routing, destination, mobility
			if len(rest) < 8 {
				return 0, 0, nil, false
			}
			length = (int(rest[1]) + 1) * 8
		case 44: // a fragment
			if len(rest) < 8 {
				return 0, 0, nil, false
			}
			fragment = int(binary.BigEndian.Uint16(rest[2:]) &^ 7)
		case 51: // authentication
			if len(rest) < 8 {
				return 0, 0, nil, false
			}
			length = (int(rest[1]) + 2) * 4
		default:
			return next, fragment, rest, true
		}
		if len(rest) < length {
			return 0, 0, nil, false
		}
		next, rest = rest[0], rest[length:]
		if fragment > 0 {
			return next, fragment, rest, true
		}
	}
}
