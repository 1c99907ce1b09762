//! Encrypted connections.

use super::address::{Address, Tls};
use super::wire::Failure;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    StreamOwned,
};
use std::fmt;
use std::net::TcpStream;
use std::sync::Arc;

pub(super) type Protected = StreamOwned<ClientConnection, TcpStream>;

/// Wraps a connection in TLS. The handshake happens with the first bytes that are written.
pub(super) fn protect(stream: TcpStream, address: &Address, name: &str) -> Result<Protected, Failure> {
    let refuse = |cause: &dyn fmt::Display| Failure::Nonsense(format!("no TLS with {name}: {cause}"));
    let provider = Arc::new(ring::default_provider());
    // As Postgres does: an explicit root certificate implies verification.
    let level = match address.tls {
        Tls::Prefer | Tls::Require if address.roots.is_some() => Tls::VerifyCa,
        level => level,
    };
    let signer = match level {
        Tls::VerifyCa | Tls::VerifyFull => {
            let roots = Arc::new(roots(address).map_err(|e| refuse(&e))?);
            let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build();
            Some(verifier.map_err(|e| refuse(&e))?)
        }
        _ => None,
    };
    let verifier = Verifier { signer, is_any_name: level < Tls::VerifyFull, provider: provider.clone() };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| refuse(&e))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    let server = ServerName::try_from(name.to_owned()).map_err(|e| refuse(&e))?;
    let connection = ClientConnection::new(Arc::new(config), server).map_err(|e| refuse(&e))?;
    Ok(StreamOwned::new(connection, stream))
}

/// The trusted certificate authorities.
fn roots(address: &Address) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    match &address.roots {
        Some(file) => {
            let all = CertificateDer::pem_file_iter(file).map_err(|e| format!("{file}: {e}"))?;
            for certificate in all {
                let added = certificate.map_err(|e| e.to_string()).map(|certificate| roots.add(certificate));
                added.and_then(|added| added.map_err(|e| e.to_string())).map_err(|e| format!("{file}: {e}"))?;
            }
        }
        // Some certificates of a system may be unreadable; the others suffice.
        None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    if roots.is_empty() { Err("no trusted certificates were found".into()) } else { Ok(roots) }
}

/// Verifies a server's certificate as far as the address requires it.
#[derive(Debug)]
struct Verifier {
    /// The verifier of the issuer; `None` if it is not verified.
    signer: Option<Arc<WebPkiServerVerifier>>,
    is_any_name: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(signer) = &self.signer else { return Ok(ServerCertVerified::assertion()) };
        match signer.verify_server_cert(certificate, others, name, ocsp, now) {
            // The name is checked last.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.is_any_name => Ok(ServerCertVerified::assertion()),
            answer => answer,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
