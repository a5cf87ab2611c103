package app

import "gatehouse/internal/access/limit"

// claims divides a number of things among principals for a module, which knows who of
// its callers is an administrator.
func claims(name string, total int) func(principal string, administrator bool) (release func(), err error) {
	shares := limit.NewShares(limit.Resource{Name: name, Total: int64(total)})
	return func(principal string, administrator bool) (release func(), err error) {
		held, err := shares.Claim(limit.Holder{Principal: principal, Administrator: administrator}, 1)
		if err != nil {
			return nil, err
		}
		return held.Release, nil
	}
}
