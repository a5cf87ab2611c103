package proxy

import (
	"bufio"
	"errors"
	"fmt"

	"golang.org/x/crypto/cryptobyte"
)

const (
	tlsHandshake   = 22
	clientHello    = 1
	mostOfRecord   = 1 << 14
	maxClientHello = 48 << 10 // bytes, records and all
	serverNameExt  = 0
)

// unrecognised is the TLS alert unrecognized_name.
var unrecognised = []byte{21, 3, 1, 0, 2, 2, 112}

// peekClientHello parses a TLS ClientHello without consuming it, across all its records, and returns the server
// name, "" if there is none.
func peekClientHello(in *bufio.Reader) (name string, err error) {
	var message []byte
	for at := 0; ; {
		head, err := in.Peek(at + 5)
		if err != nil {
			return "", fmt.Errorf("the TLS handshake broke off: %w", err)
		}
		head = head[at:]
		size := int(head[3])<<8 | int(head[4])
		if head[0] != tlsHandshake || head[1] != 3 || size == 0 || size > mostOfRecord || at+5+size > maxClientHello {
			return "", errors.New("the TLS handshake is malformed or too long")
		}
		record, err := in.Peek(at + 5 + size)
		if err != nil {
			return "", fmt.Errorf("the TLS handshake broke off: %w", err)
		}
		message = append(message, record[at+5:]...)
		at += 5 + size
		if body, whole, err := clientHelloBody(message); whole || err != nil {
			if err != nil {
				return "", err
			}
			return serverName(body)
		}
	}
}

func clientHelloBody(message []byte) (body []byte, whole bool, err error) {
	if message[0] != clientHello {
		return nil, false, errors.New("the TLS connection does not start with a ClientHello")
	}
	if len(message) < 4 {
		return nil, false, nil
	}
	size := int(message[1])<<16 | int(message[2])<<8 | int(message[3])
	if size > maxClientHello {
		return nil, false, errors.New("the TLS ClientHello is too long")
	}
	if len(message) < 4+size {
		return nil, false, nil
	}
	return message[4 : 4+size], true, nil
}

var errClientHello = errors.New("the TLS ClientHello is malformed")

func serverName(body []byte) (string, error) {
	s := cryptobyte.String(body)
	var session, suites, compression, extensions cryptobyte.String
	if !s.Skip(2+32) || !s.ReadUint8LengthPrefixed(&session) || !s.ReadUint16LengthPrefixed(&suites) ||
		!s.ReadUint8LengthPrefixed(&compression) {
		return "", errClientHello
	}
	if s.Empty() {
		return "", nil
	}
	if !s.ReadUint16LengthPrefixed(&extensions) || !s.Empty() {
		return "", errClientHello
	}
	name, found := "", false
	for !extensions.Empty() {
		var kind uint16
		var data cryptobyte.String
		if !extensions.ReadUint16(&kind) || !extensions.ReadUint16LengthPrefixed(&data) {
			return "", errClientHello
		}
		if kind != serverNameExt {
			continue
		}
		if found {
			return "", errClientHello
		}
		found = true
		var list, host cryptobyte.String
		var form uint8
		if !data.ReadUint16LengthPrefixed(&list) || !data.Empty() || !list.ReadUint8(&form) || form != 0 ||
			!list.ReadUint16LengthPrefixed(&host) || !list.Empty() || len(host) == 0 {
			return "", errClientHello
		}
		name = string(host)
	}
	return name, nil
}
