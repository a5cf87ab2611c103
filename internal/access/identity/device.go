package identity

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"net/http"
	"time"
)

const (
	deviceLife  = 400 * 24 * time.Hour // the longest time for which browsers keep a cookie
	mostDevices = 50                   // of one user; the least recently used is removed
)

// knownDevice reports whether a request comes from a browser in which this user
// has logged in before, by its cookie. The cookie is no credential.
func (s *Service) knownDevice(r *http.Request, user string) (hash digest, known bool) {
	all := r.CookiesNamed(s.cookieName(r, deviceName))
	if len(all) != 1 || len(all[0].Value) != cookieSize {
		return hash, false
	}
	hash = digestOf(all[0].Value)
	db, err := s.store.reader()
	if db == nil || err != nil {
		return hash, false
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	err = db.QueryRowContext(ctx,
		"SELECT EXISTS (SELECT 1 FROM device JOIN user ON user = number WHERE hash = ? AND name = ?)", hash[:], user).
		Scan(&known)
	return hash, known && err == nil
}

// rememberDevice sets a cookie that identifies the browser in which a user has just logged in. A
// failure is only logged, because the device then only lacks its own budget of tries.
func (s *Service) rememberDevice(w http.ResponseWriter, r *http.Request, user string) {
	hash, known := s.knownDevice(r, user)
	secret := ""
	if !known {
		secret = newCookie()
		hash = digestOf(secret)
	}
	err := s.store.changeInTx(r.Context(), func(tx *sql.Tx) error {
		now := stamp(time.Now())
		if err := touched(tx.Exec(`INSERT INTO device (hash, user, used) SELECT ?, number, ? FROM user WHERE name = ?
			ON CONFLICT (hash) DO UPDATE SET used = excluded.used`, hash[:], now, user)); err != nil {
			return err
		}
		_, err := tx.Exec(`DELETE FROM device WHERE hash IN (SELECT hash FROM device
			WHERE user = (SELECT number FROM user WHERE name = ?) ORDER BY used DESC, hash LIMIT -1 OFFSET ?)`, user, mostDevices)
		return err
	})
	if err != nil {
		if !errors.Is(err, ErrNoUser) {
			s.log.WarnContext(r.Context(), "cannot remember a device", "user", user, "err", err)
		}
		return
	}
	if secret != "" {
		c := s.cookieFor(r, deviceName, secret)
		c.MaxAge = int(deviceLife / time.Second)
		http.SetCookie(w, c)
	}
}

// claimed returns the name of the user that a caller claims to be, as events show it: the name if there
// is such a user, and otherwise a digest, because people type passwords into the field for the name.
func (s *Service) claimed(ctx context.Context, name string) string {
	if _, there, err := s.findAccount(ctx, "name = ?", name); there && err == nil {
		return name
	}
	if name == "" {
		return ""
	}
	sum := sha256.Sum256(append(s.salt[:], name...))
	return "unknown:" + letters.EncodeToString(sum[:5])
}
