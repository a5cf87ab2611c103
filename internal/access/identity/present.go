package identity

import (
	"context"
	"database/sql"
	"errors"

	"gatehouse/tool"
)

// Present returns a caller of an earlier time with the roles that its user has now. It refuses a caller whose user was
// removed, or whose token was revoked, with a *tool.Refusal. A login that has ended refuses nothing, because who logs
// out does not give up what was begun. A caller that is no user in the file, such as that of a provider or the host's
// own user, is returned as it is.
func (s *Service) Present(ctx context.Context, who tool.Caller) (tool.Caller, error) {
	db, err := s.store.reader()
	if db == nil || err != nil {
		return who, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var revoked bool
	err = db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM ended WHERE user = ? "+
		"AND credential = ? AND credential LIKE 't!_%' ESCAPE '!')",
		who.Principal, who.Credential).Scan(&revoked)
	if err != nil {
		return who, err
	}
	if revoked {
		return who, tool.Refuse(tool.CodeDenied, "the token with which %s has called this was revoked", who.Principal)
	}
	if who.Principal == s.owner {
		return who, nil
	}
	var roles string
	err = db.QueryRowContext(ctx, "SELECT roles FROM user WHERE name = ? AND "+ownerID+" = ?", who.Principal, who.ID).
		Scan(&roles)
	if err == nil {
		who.Roles = unlist(roles)
		return who, nil
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return who, err
	}
	owner := who.ID
	if owner == "" {
		owner = who.Principal
	}
	var removed bool
	err = db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM removal WHERE name = ? AND owner = ?)", who.Principal, owner).
		Scan(&removed)
	if err == nil && removed {
		err = tool.Refuse(tool.CodeDenied, "user %s was removed", who.Principal)
	}
	return who, err
}
