package wireguard

import "testing"

func FuzzParse(f *testing.F) {
	f.Add(
		"[Interface]\nPrivateKey = AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\nAddress = 10.0.0.1/24, fd00::1\n" +
			"DNS = 10.0.0.2\nMTU = 1400\n" +
			"[Peer]\nPublicKey = AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\nAllowedIPs = 0.0.0.0/0\n" +
			"Endpoint = [::1]:51820\n",
	)
	f.Add("[Peer]\n[Interface]\n=\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse(text)
		if err != nil {
			return
		}
		if len(c.Addresses) == 0 || len(c.Peers) == 0 {
			t.Errorf("accepted %+v", c)
		}
		c.AllowAll()
		if c.device(1, make([]string, len(c.Peers))) == "" {
			t.Error("the device is given nothing")
		}
	})
}
