package schema

import (
	"net/mail"
	"net/netip"
	"net/url"
	"regexp"
	"time"
)

var uuid = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// hasFormat reports whether a string has a format. It returns true for formats
// that are not enforced.
func hasFormat(s, format string) bool {
	switch format {
	case "date-time":
		_, err := time.Parse(time.RFC3339, s)
		return err == nil
	case "date":
		_, err := time.Parse(time.DateOnly, s)
		return err == nil
	case "time":
		_, err := time.Parse("15:04:05Z07:00", s)
		return err == nil
	case "email":
		a, err := mail.ParseAddress(s)
		return err == nil && a.Address == s
	case "uri":
		u, err := url.Parse(s)
		return err == nil && u.IsAbs()
	case "uuid":
		return uuid.MatchString(s)
	case "ipv4", "ipv6":
		a, err := netip.ParseAddr(s)
		return err == nil && a.Is4() == (format == "ipv4") && a.Zone() == ""
	}
	return true
}
