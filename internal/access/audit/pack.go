package audit

import (
	"errors"

	"github.com/klauspost/compress/s2"
)

// mostUnpacked is how large the lines of one block may become; a block takes
// no further line after longestBlock.
const mostUnpacked = 16 << 20

var errPacked = errors.New("a block of the audit ledger is damaged: it cannot be unpacked")

// pack makes the text of a block smaller, to about a tenth. It uses the room
// that scratch has.
func pack(scratch, text []byte) []byte { return s2.Encode(scratch[:cap(scratch)], text) }

// unpack is the text of a block. What is empty stays so.
func unpack(packed []byte) ([]byte, error) {
	if len(packed) == 0 {
		return nil, nil
	}
	if n, err := s2.DecodedLen(packed); err != nil || n > mostUnpacked {
		return nil, errPacked
	}
	text, err := s2.Decode(nil, packed)
	if err != nil {
		return nil, errPacked
	}
	return text, nil
}
