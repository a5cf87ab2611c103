package approvals

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"gatehouse/internal/access/displaytext"
)

const (
	wholeArgs  = 4 << 10  // bytes of arguments up to which they are shown unchanged
	wholeValue = 512      // bytes of one value up to which it is shown whole, if the arguments are longer
	wholeLine  = 16 << 10 // bytes of a command line, which is shown whole or refused
	endsShown  = 160      // bytes of the beginning, and of the end, of a shortened value
)

// lines are the names of arguments that hold a command. They are shown in full, because a person who
// sees only part of a command cannot approve it.
var lines = []string{"command", "args", "argv", "cmd", "script", "code", "stdin", "env"}

// TooLong is the error for a call that cannot be approved, because its command is too long to be shown.
type TooLong struct {
	Argument string
	Bytes    int
}

func (e *TooLong) Error() string {
	return fmt.Sprintf(
		"its %s has %d bytes, and a command must be shown in full: at most %d bytes can be approved",
		e.Argument,
		e.Bytes,
		wholeLine,
	)
}

// cut replaces a value that is too long to be shown.
type cut struct {
	Beginning string `json:"beginning"`
	End       string `json:"end"`
	Bytes     int    `json:"bytes"`
	SHA256    string `json:"sha256"`
}

// Shown returns a call's arguments in the form in which an operator sees them: all of them if they are
// short, otherwise the beginning, end, length and digest of each long value. Characters that could
// deceive the reader are escaped. The error is a *TooLong.
func Shown(args json.RawMessage) (json.RawMessage, error) {
	if len(args) == 0 {
		return json.RawMessage("{}"), nil
	}
	if len(args) <= wholeArgs {
		return displaytext.JSON(args), nil
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(args, &members) != nil {
		return shorten(args), nil
	}
	total := 0
	for name, v := range members {
		switch {
		case slices.Contains(lines, name):
			if len(v) > wholeLine {
				return nil, &TooLong{name, len(v)}
			}
		case len(v) > wholeValue:
			members[name] = shorten(v)
		}
		if total += len(name) + len(members[name]); total > 2*wholeLine {
			for _, line := range lines {
				if v, ok := members[line]; ok {
					return nil, &TooLong{line, len(v)}
				}
			}
			return shorten(args), nil // too many arguments for a useful list
		}
	}
	b, err := json.Marshal(members)
	if err != nil {
		return shorten(args), nil
	}
	return displaytext.JSON(json.RawMessage(b)), nil
}

// shorten replaces a value by its beginning, end, length and digest.
func shorten(v json.RawMessage) json.RawMessage {
	text := string(v)
	json.Unmarshal(v, &text) // a string loses its quotes, any other value stays unchanged
	sum := sha256.Sum256([]byte(text))
	c := cut{Bytes: len(text), SHA256: hex.EncodeToString(sum[:])}
	c.Beginning = strings.ToValidUTF8(displaytext.Cut(text, endsShown, ""), "")
	c.End = strings.ToValidUTF8(text[max(0, len(text)-endsShown):], "")
	b, err := json.Marshal(c)
	if err != nil {
		return json.RawMessage(`"…"`) // unreachable: strings and a number can be encoded
	}
	return displaytext.JSON(json.RawMessage(b))
}
