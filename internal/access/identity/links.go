package identity

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/files/sqlfile"
)

// Link makes a client certificate or a subject of the OAuth provider identify a user. kind is
// LinkCertificate or LinkOAuth.
func (s *Service) Link(ctx context.Context, kind, subject, user string) error {
	if err := checkLink(kind, subject); err != nil {
		return err
	}
	err := s.changeRows(ctx, ErrNoUser, func(tx *sql.Tx) error {
		err := touched(
			tx.Exec(
				"INSERT INTO link (kind, subject, user) SELECT ?, ?, number FROM user WHERE name = ?",
				kind,
				subject,
				user,
			),
		)
		if sqlfile.IsTaken(err) {
			return fmt.Errorf("%s %s belongs to a user already: %w", kind, subject, ErrTaken)
		}
		return err
	})
	if err == nil {
		s.publishEvent("link_added", user, kind+" "+subject, "")
	}
	return err
}

// Kinds of links.
const (
	LinkCertificate = "certificate" // subject is sha256:HEX, uri:URI, email:ADDRESS, dns:NAME or cn:NAME
	LinkOAuth       = "oauth"       // subject is the value of the user claim
)

const mostSubject = 512 // bytes

func checkLink(kind, subject string) error {
	if subject == "" || len(subject) > mostSubject {
		return fmt.Errorf("a subject has 1 to %d bytes", mostSubject)
	}
	switch kind {
	case LinkOAuth:
		return nil
	case LinkCertificate:
		name, rest, ok := strings.Cut(subject, ":")
		if ok && rest != "" && slices.Contains([]string{"sha256", "uri", "email", "dns", "cn"}, name) {
			return nil
		}
		return fmt.Errorf(
			"certificate %q: expected sha256:HEX, uri:URI, email:ADDRESS, dns:NAME or cn:NAME",
			clip(subject),
		)
	}
	return fmt.Errorf("link %q: expected %s or %s", clip(kind), LinkCertificate, LinkOAuth)
}

// Unlink removes a link and ends what was opened through it.
func (s *Service) Unlink(ctx context.Context, kind, subject string) error {
	var user string
	err := s.changeRows(ctx, ErrNone, func(tx *sql.Tx) error {
		err := tx.QueryRow("SELECT name FROM link JOIN user ON user = number WHERE kind = ? AND subject = ?",
			kind, subject).
			Scan(&user)
		if errors.Is(err, sql.ErrNoRows) {
			return ErrNone
		}
		if err != nil {
			return err
		}
		if _, err := tx.Exec("DELETE FROM link WHERE kind = ? AND subject = ?", kind, subject); err != nil {
			return err
		}
		return recordRevocations(tx, time.Now(), Revocation{Principal: user})
	})
	if err == nil {
		s.publishEvent("link_removed", user, kind+" "+subject, "")
	}
	return err
}

// Link is a certificate or an OAuth subject that identifies a user.
type Link struct {
	Kind    string `json:"kind"`
	Subject string `json:"subject"`
	User    string `json:"user"`
}

// Links returns all links, ordered by user.
func (s *Service) Links(ctx context.Context) (all []Link, err error) {
	err = s.each(ctx, func(scan func(...any) error) error {
		var l Link
		err := scan(&l.Kind, &l.Subject, &l.User)
		all = append(all, l)
		return err
	}, "SELECT kind, subject, name FROM link JOIN user ON user = number ORDER BY name, kind, subject")
	return all, err
}
